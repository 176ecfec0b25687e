case $1 in
configure) if [ -z "${2:-}" ]; then installed; else upgraded; fi ;;
esac
