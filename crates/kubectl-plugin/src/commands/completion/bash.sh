# bash completion of kubectl-kubelet_config.
_kubectl_kubelet_config() {
    local -a words lines
    local line current directive
    # What was typed, cut at blanks alone: bash would cut at = too.
    read -ra words <<<"${COMP_LINE:0:COMP_POINT}"
    [[ ${COMP_LINE:0:COMP_POINT} == *[[:space:]] ]] && words+=("")
    current=${words[-1]}
    mapfile -t lines < <("${words[0]}" __complete "${words[@]:1}" 2>/dev/null)
    ((${#lines[@]})) || return
    directive=${lines[-1]}
    unset 'lines[-1]'
    COMPREPLY=()
    if [[ $directive == :0 ]]; then
        compopt -o default 2>/dev/null
        return
    fi
    for line in "${lines[@]}"; do
        line=${line%%$'\t'*}
        # bash has the text before = already.
        [[ $current == *=* && $COMP_WORDBREAKS == *=* ]] && line=${line#*=}
        COMPREPLY+=("$line")
    done
}
complete -F _kubectl_kubelet_config kubectl-kubelet_config
