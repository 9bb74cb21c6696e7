# For root, vcap and new users: the stemcell's programs, and a prompt that names the instance.
case :$PATH: in *:/var/vcap/bosh/bin:*) ;; *) PATH=/var/vcap/bosh/bin:$PATH ;; esac
instance=$(cat /var/vcap/instance/name 2>/dev/null) && instance=$instance/$(cat /var/vcap/instance/id 2>/dev/null) || instance='\h'
PS1="$instance:\\w\\\$ "
unset instance
