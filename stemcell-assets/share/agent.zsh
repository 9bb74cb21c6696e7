#compdef agent
# Completion of agent for zsh.
local -a commands
commands=(
	'help:list the commands, or show the help of one'
	'run:run the agent (what a stemcell does with flags alone)'
	'status:show state, verdict and boot steps, or --wait for them'
	'retry:begin the next attempt of a failed boot at once'
	'timeline:show where the boot spent its time'
	'doctor:find out why the Director may not see this machine'
	'support:write a support archive without secrets'
	'metrics:print the state of boot, bus, disks and jobs for Prometheus'
	'validate:check agent.json, settings or update-settings documents'
	'settings:ask the sources as a boot does, show the effective settings'
	'plan:show what a boot would change on this machine'
	'disk:accept, release or format a disk'
	'jobs:show the processes of the jobs'
	'supervise:run the jobs in place of monit'
	'compile:compile release tarballs on this machine, without a Director'
	'log-level:show or change the log level of the running agent'
	'trial:try this agent on a VM whose stemcell has another, and go back'
	'version:print the version'
)
if ((CURRENT == 2)); then
	_describe command commands
	return
fi
shift words
((CURRENT--))
case $words[1] in
help) _describe command commands ;;
run)
	_arguments \
		'-C[path of AGENT_JSON; bosh/agent.json below BASE if not given]:AGENT_JSON:_default' \
		'-M[SUPERVISOR; monit, systemd (the agent'\''s own, in monit.service), dummy or dummy-nats]:SUPERVISOR:_default' \
		'-P[PLATFORM; ubuntu or centos, which are the same, or dummy, which does not touch the machine]:PLATFORM:_default' \
		'-b[BASE directory]:BASE:_default' \
		'--no-alerts[accepted and ignored]' \
		'-r[accepted and ignored]:string:_default' \
		'-v[print the version and exit]' \
		'--help[show the help of the command]' '*:file:_files'
	;;
status)
	_arguments \
		'--file[status FILE to read]:FILE:_default' \
		'--json[print the status document]' \
		'-v[show every boot step, with what it waited for, saw and changed]' \
		'--wait[wait until the agent has failed, or is ready with its bus, at most DURATION if one is given]:DURATION:_default' \
		'--help[show the help of the command]' '*:file:_files'
	;;
retry)
	_arguments \
		'--file[status FILE of the agent]:FILE:_default' \
		'--help[show the help of the command]' '*:file:_files'
	;;
timeline)
	_arguments \
		'-b[BASE directory with the record of earlier boots]:BASE:_default' \
		'--blame[list what took longest]' \
		'--boot[compare with an earlier boot; -1 is the last one]:int:_default' \
		'--file[status FILE to read]:FILE:_default' \
		'--json[print a JSON document]' \
		'--width[width in characters; the terminal'\''s if not given]:int:_default' \
		'--help[show the help of the command]' '*:file:_files'
	;;
doctor)
	_arguments \
		'-C[AGENT_JSON that names the sources; bosh/agent.json below BASE if not given]:AGENT_JSON:_default' \
		'-b[BASE directory]:BASE:_default' \
		'--file[status FILE to read]:FILE:_default' \
		'--json[print a JSON document]' \
		'--timeout[how long to wait for each remote host]:duration:_default' \
		'-v[also show checks that passed]' \
		'--help[show the help of the command]' '*:file:_files'
	;;
support)
	_arguments \
		'-C[AGENT_JSON; bosh/agent.json below BASE if not given]:AGENT_JSON:_default' \
		'-b[BASE directory]:BASE:_default' \
		'--file[status FILE to read]:FILE:_default' \
		'--timeout[how long to wait for each remote host and each program]:duration:_default' \
		'--help[show the help of the command]' '*:file:_files'
	;;
metrics)
	_arguments \
		'-b[BASE directory]:BASE:_default' \
		'--file[status FILE to read]:FILE:_default' \
		'--textfile[replace FILE instead of printing]:FILE:_default' \
		'--help[show the help of the command]' '*:file:_files'
	;;
validate)
	_arguments \
		'-b[BASE directory of --system]:BASE:_default' \
		'--json[print the findings as a JSON list]' \
		'--system[check the files of this machine; agent.json and the cached settings and updates]' \
		'1:argument:(agent.json settings update-settings)' \
		'--help[show the help of the command]' '*:file:_files'
	;;
settings)
	_arguments \
		'-C[AGENT_JSON that names the sources; bosh/agent.json below BASE if not given]:AGENT_JSON:_default' \
		'-b[BASE directory with the cached state]:BASE:_default' \
		'--explain[show where each value came from, and the outcome of each source]' \
		'--json[print a JSON document]' \
		'--query[print only the value at PATH, as '\''agent settings'\'' names it; objects and lists as JSON]:PATH:_default' \
		'--timeout[how long to wait for sources]:duration:_default' \
		'--help[show the help of the command]' '*:file:_files'
	;;
plan)
	_arguments \
		'-C[AGENT_JSON that names the sources; bosh/agent.json below BASE if not given]:AGENT_JSON:_default' \
		'-b[BASE directory]:BASE:_default' \
		'--json[print a JSON document]' \
		'--timeout[how long the whole plan may take]:duration:_default' \
		'--help[show the help of the command]' '*:file:_files'
	;;
disk)
	_arguments \
		'-b[BASE directory]:BASE:_default' \
		'--yes[accept, format; confirm that this disk is meant; to format, that all data on it is lost]' \
		'--help[show the help of the command]' '*:file:_files'
	;;
jobs)
	_arguments \
		'-b[BASE directory]:BASE:_default' \
		'--json[print JSON]' \
		'--watch[print again every two seconds, until interrupted]' \
		'--help[show the help of the command]' '*:file:_files'
	;;
supervise)
	_arguments \
		'-b[BASE directory]:BASE:_default' \
		'--help[show the help of the command]' '*:file:_files'
	;;
compile)
	_arguments \
		'-b[BASE directory]:BASE:_default' \
		'--output-directory[DIR for the compiled releases]:DIR:_default' \
		'--help[show the help of the command]' '*:file:_files'
	;;
log-level)
	_arguments \
		'--file[status FILE of the agent]:FILE:_default' \
		'1:argument:(info debug)' \
		'--help[show the help of the command]' '*:file:_files'
	;;
trial)
	_arguments \
		'--after[do it in this process, after the end of process PID; what the command starts in the background]:PID:_default' \
		'-b[BASE directory]:BASE:_default' \
		'--delay[the DURATION between the end of this command and the restart, at most 10m; a Director must get the answer first]:DURATION:_default' \
		'--json[with status; print the record]' \
		'--time[the DURATION in which the new agent must prove itself, 10s to 30m]:DURATION:_default' \
		'1:argument:(try keep status back)' \
		'--help[show the help of the command]' '*:file:_files'
	;;
version)
	_arguments \
		'--help[show the help of the command]' '*:file:_files'
	;;
esac
