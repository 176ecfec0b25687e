# fish completion of kubectl-kubelet_config.
function __kubectl_kubelet_config
    set -l words (commandline -opc)
    set -l lines ($words[1] __complete $words[2..-1] (commandline -ct) 2>/dev/null)
    if test "$lines[-1]" = ":0"
        __fish_complete_path (commandline -ct)
        return
    end
    for line in $lines
        string match -q ':*' -- $line; or echo $line
    end
end
complete -c kubectl-kubelet_config -f -a '(__kubectl_kubelet_config)'
