# Completion of agent for bash.
_agent() {
	local word=${COMP_WORDS[COMP_CWORD]} flags= words=
	COMPREPLY=()
	if ((COMP_CWORD == 1)); then
		words="help run status retry timeline doctor support metrics validate settings plan disk jobs supervise compile log-level trial version --help --version"
	else
		case ${COMP_WORDS[1]} in
		help) words="help run status retry timeline doctor support metrics validate settings plan disk jobs supervise compile log-level trial version" ;;
		run) flags="-C -M -P -b --no-alerts -r -v --help" words="" ;;
		status) flags="--file --json -v --wait --help" words="" ;;
		retry) flags="--file --help" words="" ;;
		timeline) flags="-b --blame --boot --file --json --width --help" words="" ;;
		doctor) flags="-C -b --file --json --timeout -v --help" words="" ;;
		support) flags="-C -b --file --timeout --help" words="" ;;
		metrics) flags="-b --file --textfile --help" words="" ;;
		validate) flags="-b --json --system --help" words="agent.json settings update-settings" ;;
		settings) flags="-C -b --explain --json --query --timeout --help" words="" ;;
		plan) flags="-C -b --json --timeout --help" words="" ;;
		disk) flags="-b --yes --help" words="" ;;
		jobs) flags="-b --json --watch --help" words="" ;;
		supervise) flags="-b --help" words="" ;;
		compile) flags="-b --output-directory --help" words="" ;;
		log-level) flags="--file --help" words="info debug" ;;
		trial) flags="--after -b --delay --json --time --help" words="try keep status back" ;;
		version) flags="--help" words="" ;;
		esac
	fi
	[[ $word != -* ]] || words="$words $flags"
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -o default -F _agent agent
