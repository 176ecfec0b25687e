//! The value of an `ExecStart=`: whose command it is, without changing a letter of it.

/// The command of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    /// What systemd takes off before it runs it, such as `-`; empty mostly.
    pub(crate) prefix: String,
    /// Options of `run`, in the unit's own spelling, if the supervisor stands before the kubelet.
    pub(crate) options: Option<String>,
    /// The kubelet's own command, in the unit's own spelling.
    pub(crate) kubelet: String,
    /// The file the kubelet's command names first.
    pub(crate) program: String,
}

/// Programs that start another one, as far as they were seen before a kubelet.
const LAUNCHERS: [&str; 21] = [
    "env",
    "nice",
    "ionice",
    "chrt",
    "taskset",
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
    "exec",
    "kubelet-wrapper",
    "kubenswrapper",
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
        let (options, kubelet) = match bare.split_once(char::is_whitespace) {
            Some((program, rest)) if is_supervisor(program, rest) => behind_supervisor(rest)?,
            _ => (None, bare.trim().to_owned()),
        };
        let args = split_command(&kubelet);
        if args.iter().any(|arg| arg == ";") {
            return Err(format!("it holds several commands, of which a kubelet's unit can only have one: {value}"));
        }
        let program = program_of(&args).map_err(|why| format!("{why}: {kubelet}"))?;
        Ok(Self { prefix: prefix.to_owned(), options, kubelet, program })
    }
}

/// By its name, or, whatever it is called, by its command line: no kubelet has a verb `run`.
fn is_supervisor(program: &str, rest: &str) -> bool {
    base(program).starts_with("kubelet-supervisor") || (rest.trim_start().starts_with("run ") && rest.contains(" -- "))
}

/// What follows `kubelet-supervisor`: its options, and the kubelet's command.
fn behind_supervisor(rest: &str) -> Result<(Option<String>, String), String> {
    let unreadable = || format!("it starts the supervisor, but without `run … -- KUBELET`: {rest}");
    let run = rest.trim_start().strip_prefix("run ").ok_or_else(unreadable)?;
    let padded = format!(" {run}");
    let (options, kubelet) = padded.split_once(" -- ").ok_or_else(unreadable)?;
    Ok((Some(options.trim().to_owned()), kubelet.trim().to_owned()))
}

/// The program of a kubelet's command.
fn program_of(args: &[String]) -> Result<String, String> {
    const OWN: &str = "the supervisor has to be given the kubelet itself with its own arguments. Put them into \
        ExecStart= (`systemctl edit`), and what is computed into a file that EnvironmentFile= names";
    let program = args.first().ok_or("it is empty")?;
    let name = base(program);
    if SHELLS.contains(&name) {
        return Err(format!("it runs a shell, and {OWN}, written by an ExecStartPre="));
    }
    if CONTAINERS.contains(&name) {
        return Err(format!("it runs the kubelet in a container, or under {name}, and {OWN}"));
    }
    if LAUNCHERS.contains(&name) {
        return Err(format!("it runs the kubelet by way of {name}, and {OWN}"));
    }
    let multi_call = args.get(1).is_some_and(|arg| arg == "kubelet");
    if name.starts_with("kubelet") || multi_call {
        return Ok(program.clone());
    }
    Err("this does not look like a kubelet: the program is not called kubelet, nor is its first argument \
        (a binary of many programs). If another unit runs the kubelet, name it with --unit"
        .to_owned())
}

fn base(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// A command's arguments with the quotes taken off, as far as it takes to tell whose it is.
pub(crate) fn split_command(command: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = command.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\\', _) => word.get_or_insert_default().extend(chars.next()),
            (c, Some(open)) if c == open => quote = None,
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, None) if c.is_whitespace() => found.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    found.extend(word);
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
