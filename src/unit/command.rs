//! The value of an `ExecStart=`: whose command it is, without changing a letter of it.

use super::launcher::{self, base};

/// The command of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    /// What systemd takes off before it runs it, such as `-`; empty mostly.
    pub(crate) prefix: String,
    /// Launchers with their options, in the unit's own spelling, each with a blank after it; empty mostly.
    pub(crate) launchers: String,
    /// Options of `run`, in the unit's own spelling, if the supervisor stands before the kubelet.
    pub(crate) options: Option<String>,
    /// The kubelet's own command, in the unit's own spelling.
    pub(crate) kubelet: String,
    /// The file the kubelet's command names first.
    pub(crate) program: String,
}

/// Other programs that start one, as far as they were seen before a kubelet: as another process, as somebody else, or elsewhere.
const STARTERS: [&str; 31] = [
    "numactl",
    "systemd-inhibit",
    "systemd-run",
    "sudo",
    "su",
    "runuser",
    "setpriv",
    "unshare",
    "nsenter",
    "flock",
    "timeout",
    "nohup",
    "stdbuf",
    "setsid",
    "exec",
    "kubelet-wrapper",
    "kubensenter",
    "prlimit",
    "doas",
    "gosu",
    "su-exec",
    "tini",
    "dumb-init",
    "catatonit",
    "chroot",
    "choom",
    "runcon",
    "cgexec",
    "strace",
    "catchsegv",
    "time",
];

const SHELLS: [&str; 7] = ["sh", "bash", "dash", "ash", "zsh", "ksh", "busybox"];

const CONTAINERS: [&str; 6] = ["docker", "podman", "nerdctl", "ctr", "rkt", "snap"];

impl Command {
    /// Reads the value of an `ExecStart=`.
    ///
    /// # Errors
    /// Why this is not the command of a kubelet that the supervisor could run, and what to do.
    pub(crate) fn read(value: &str) -> Result<Self, String> {
        let bare = value.trim_start_matches(['-', '@', ':', '+', '!', '|']);
        let prefix = value.strip_suffix(bare).unwrap_or_default();
        if let Some(c) = prefix.chars().find(|c| "@|".contains(*c)) {
            let why = if c == '@' { "gives the program another name" } else { "starts a shell" };
            return Err(format!("the prefix {c:?} {why}: take it away (`systemctl edit`), then try again: {value}"));
        }
        let (mut launchers, mut options, mut rest) = (String::new(), None, bare.trim().to_owned());
        loop {
            let words = split_words(&rest);
            let texts: Vec<&str> = words.iter().map(|(_, word)| word.as_str()).collect();
            rest = if let Some(line) = launcher::shell_line(&texts).filter(|_| !rest.contains('\\')) {
                line.to_owned()
            } else if let Some(length) = launcher::length(&texts).map_err(|why| by_hand(&why, &rest))? {
                let begin = words.get(length).map_or(rest.len(), |(begin, _)| *begin);
                let (launcher, command) = rest.split_at(begin);
                launchers.push_str(launcher.trim_end());
                launchers.push(' ');
                command.to_owned()
            } else if let Some((program, behind)) = rest.split_once(char::is_whitespace)
                && options.is_none()
                && is_supervisor(program, behind)
            {
                let (before, kubelet) = behind_supervisor(behind)?;
                options = Some(before);
                kubelet
            } else {
                break;
            };
        }
        let args = split_command(&rest);
        if args.iter().any(|arg| arg == ";") {
            return Err(format!("it holds several commands, of which a kubelet's unit can only have one: {value}"));
        }
        let program = program_of(&args, &rest)?;
        Ok(Self { prefix: prefix.to_owned(), launchers, options, kubelet: rest, program })
    }
}

/// By its name, or, whatever it is called, by its command line: no kubelet has a verb `run`. A launcher may be told `run` as
/// anything else, so this is for what is none.
fn is_supervisor(program: &str, rest: &str) -> bool {
    base(program).starts_with("kubelet-supervisor") || (rest.trim_start().starts_with("run ") && rest.contains(" -- "))
}

/// What follows `kubelet-supervisor`: its options, and the kubelet's command.
fn behind_supervisor(rest: &str) -> Result<(String, String), String> {
    let unreadable = || format!("it starts the supervisor, but without `run … -- KUBELET`: {rest}");
    let run = rest.trim_start().strip_prefix("run ").ok_or_else(unreadable)?;
    // A quoted word may hold ` -- ` as well.
    let words = split_words(run);
    let begin = words.iter().find(|(_, word)| word == "--").map(|(begin, _)| *begin);
    let (options, rest) = begin.and_then(|begin| run.split_at_checked(begin)).ok_or_else(unreadable)?;
    let kubelet = rest.strip_prefix("-- ").ok_or_else(unreadable)?;
    Ok((options.trim().to_owned(), kubelet.trim().to_owned()))
}

/// The program of a kubelet's command.
fn program_of(args: &[String], command: &str) -> Result<String, String> {
    let program = args.first().ok_or("no kubelet follows")?;
    let name = base(program);
    if SHELLS.contains(&name) {
        return Err(by_hand("it runs a shell", command));
    }
    if CONTAINERS.contains(&name) {
        return Err(format!(
            "it runs the kubelet in a container, or under {name}, and the supervisor has to be given the kubelet itself: {command}"
        ));
    }
    if STARTERS.contains(&name) {
        return Err(by_hand(&format!("it runs the kubelet by way of {name}"), command));
    }
    let multi_call = args.get(1).is_some_and(|arg| arg == "kubelet");
    if name.starts_with("kubelet") || multi_call {
        return Ok(program.clone());
    }
    let unknown = "this does not look like a kubelet: the program is not called kubelet, nor is its first argument (a \
        binary of many programs). If another unit runs the kubelet, name it with --unit";
    Err(format!("{}: {command}", distribution(name).unwrap_or(unknown)))
}

/// A refusal, with the line that would do.
fn by_hand(why: &str, command: &str) -> String {
    let line = kubelet_within(command).unwrap_or_else(|| "/usr/bin/kubelet $KUBELET_ARGS".to_owned());
    format!(
        "{why}, and the supervisor has to be given the kubelet itself with its own arguments. Write it so that ExecStart= \
         runs the kubelet (`systemctl edit`: an empty ExecStart=, then `ExecStart={line}`); what is computed goes into a \
         file that EnvironmentFile= names, written by an ExecStartPre=. Now it is: {command}"
    )
}

/// The kubelet's own command in one that starts it, as far as systemd would read it so: in the last line of a shell's script too.
fn kubelet_within(command: &str) -> Option<String> {
    let words = split_words(command);
    let is_kubelet = |word: &str| base(word) == "kubelet";
    let after = |text: &str| {
        let words = split_words(text);
        words
            .into_iter()
            .rev()
            .find(|(_, word)| is_kubelet(word))
            .and_then(|(begin, _)| text.get(begin..).map(str::to_owned))
    };
    let script = words.iter().skip(1).find(|(_, word)| word.contains(char::is_whitespace));
    let line = script.map_or_else(|| after(command), |(_, script)| with_variables(&after(script)?))?;
    // What a shell would compute, systemd would not.
    let is_read = Command::read(&line).is_ok_and(|command| command.launchers.is_empty())
        && is_kubelet(line.split_whitespace().next()?);
    Some(line.trim().to_owned())
        .filter(|line| is_read && !line.contains("$(") && !line.contains(['`', ';', '&', '|', '<', '>']))
}

/// A shell's line with its variables as systemd has them: `$NAME` is a word of its own, and split into words; `${NAME}` is one
/// argument, or a part of one (systemd.service(5), *Command lines*). `None`: it has another `$`.
fn with_variables(line: &str) -> Option<String> {
    if line.contains('$') && line.contains('\\') {
        return None;
    }
    let (mut text, mut rest, mut quote) = (String::new(), line, None);
    while let Some(at) = rest.find(['$', '"', '\'']) {
        let (before, from) = rest.split_at(at);
        text.push_str(before);
        let (c, behind) = (from.chars().next()?, from.get(1..)?);
        rest = behind;
        if c == '$' {
            let (name, behind) = variable(behind).filter(|_| quote != Some('\''))?;
            let is_alone = quote.is_none()
                && text.chars().next_back().is_none_or(char::is_whitespace)
                && behind.chars().next().is_none_or(char::is_whitespace);
            let (open, close) = if is_alone { ("$", "") } else { ("${", "}") };
            text.extend([open, name, close]);
            rest = behind;
            continue;
        }
        match quote {
            None => quote = Some(c),
            Some(begun) if begun == c => quote = None,
            Some(_) => {}
        }
        text.push(c);
    }
    Some(text + rest)
}

/// The name after a `$`, and what follows.
fn variable(text: &str) -> Option<(&str, &str)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (name, behind) = match text.strip_prefix('{') {
        Some(inner) => inner.split_once('}')?,
        None => text.split_at(text.find(|c| !is_name(c)).unwrap_or(text.len())),
    };
    let is_one = name.chars().all(is_name) && name.starts_with(|c: char| !c.is_ascii_digit());
    is_one.then_some((name, behind))
}

/// What to do where a program or a unit of this name runs the kubelet. k3s: docs.k3s.io, "Kubelet configuration"; RKE2: `StaticPodConfig.Kubelet`
/// of its pkg/podexecutor/staticpod.go.
pub(crate) fn distribution(name: &str) -> Option<&'static str> {
    if name.starts_with("k3s") {
        return Some(
            "k3s runs the kubelet within its own process, so there is none that could be supervised. Configure it by a \
             KubeletConfiguration in /var/lib/rancher/k3s/agent/etc/kubelet.conf.d/ (from v1.32 on) or by `kubelet-arg` in \
             /etc/rancher/k3s/config.yaml, then restart k3s",
        );
    }
    if name.starts_with("k0s") {
        return Some(
            "k0s starts the kubelet itself, as its child and with arguments it computes, so no unit has the kubelet's command. \
             Configure it by a worker profile (spec.workerProfiles of the k0s configuration) or by `--kubelet-extra-args` of \
             `k0s worker`, then restart k0s",
        );
    }
    if name.starts_with("microshift") {
        return Some(
            "MicroShift runs the kubelet within its own process, so there is none that could be supervised. Configure it by \
             the section `kubelet` of /etc/microshift/config.yaml, then restart microshift",
        );
    }
    if name.starts_with("snap.microk8s") || name == "kubelite" {
        return Some(
            "MicroK8s runs the kubelet within kubelite, so there is none that could be supervised. Configure it by \
             /var/snap/microk8s/current/args/kubelet, then restart microk8s",
        );
    }
    if name.starts_with("snap.") {
        return Some(
            "a snap starts the kubelet in its own confinement, by a command that snapd makes. Configure it by the snap's own \
             options (`snap get`, `snap set`), then restart the snap's service",
        );
    }
    name.starts_with("rke2").then_some(
        "rke2 starts the kubelet itself, as its child and with arguments it computes, so no unit has the kubelet's command. \
         Configure it by a KubeletConfiguration in /var/lib/rancher/rke2/agent/etc/kubelet.conf.d/ (from v1.32 on) or by \
         `kubelet-arg` in /etc/rancher/rke2/config.yaml, then restart rke2-server or rke2-agent",
    )
}

/// A command's arguments with the quotes taken off, as far as it takes to tell whose it is.
#[must_use]
pub fn split_command(command: &str) -> Vec<String> {
    split_words(command).into_iter().map(|(_, word)| word).collect()
}

/// The same, each with the place where it begins.
fn split_words(command: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    let mut quote = None;
    let mut chars = command.char_indices();
    while let Some((at, c)) = chars.next() {
        if quote.is_none() && c.is_whitespace() {
            found.extend(open.take());
            continue;
        }
        let (_, word) = open.get_or_insert((at, String::new()));
        match (c, quote) {
            ('\\', _) => word.extend(chars.next().map(|(_, c)| c)),
            (c, Some(begun)) if c == begun => quote = None,
            ('"' | '\'', None) => quote = Some(c),
            (c, _) => word.push(c),
        }
    }
    found.extend(open);
    found
}

/// A word in systemd's spelling: nothing in it is a variable, a specifier or a border.
pub(crate) fn quote(word: &str, expands: bool) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=/.,:+@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    let mut text = String::from("\"");
    for c in word.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            '%' => text.push_str("%%"),
            '$' if expands => text.push_str("$$"),
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            c => text.push(c),
        }
    }
    text.push('"');
    text
}
