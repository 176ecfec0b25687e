case $1 in
purge) purge_store ;;
esac
