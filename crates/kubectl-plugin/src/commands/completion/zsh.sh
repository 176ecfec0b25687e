#compdef kubectl-kubelet_config
# zsh completion of kubectl-kubelet_config.
_kubectl_kubelet_config() {
    local -a lines entries
    local line
    lines=("${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    ((${#lines})) || return 1
    if [[ ${lines[-1]} == ":0" ]]; then
        _files
        return
    fi
    for line in "${(@)lines[1,-2]}"; do
        if [[ $line == *$'\t'* ]]; then
            entries+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
        else
            entries+=("${line//:/\\:}")
        fi
    done
    _describe -t candidates candidate entries
}
compdef _kubectl_kubelet_config kubectl-kubelet_config
