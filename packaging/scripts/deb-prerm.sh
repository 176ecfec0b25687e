# Not for an upgrade.
case $1 in
remove) give_back ;;
esac
