# SPDX-License-Identifier: Apache-2.0
# fish completion for cachectl, which says itself what a word may become.

function __cachectl_complete
    set -l words (string replace -r '^~/' "$HOME/" -- (commandline -opc))
    set -l word (commandline -ct)
    set -l lines ($words[1] --complete $words[2..-1] "$word" 2>/dev/null)
    if test "$lines[1]" = ":files"
        __fish_complete_path "$word"
    else
        printf '%s\n' $lines
    end
end
complete -c cachectl -f -a '(__cachectl_complete)'
