//! Programs that end in `exec` of what follows them: the process that systemd started is then the
//! kubelet, or the supervisor, with the same pid.
//!
//! nice(1) and env(1) of coreutils, chrt(1), ionice(1) and taskset(1) of util-linux, systemd-cat(1); OpenShift's kubenswrapper,
//! which executes kubensenter, which executes nsenter. Other versions of kubensenter start it as a child: that name is not among them.

/// A launcher, and what of its command line is known to leave it one.
struct Launcher {
    name: &'static str,
    /// Options without a value.
    flags: &'static [&'static str],
    /// Options with one.
    valued: &'static [&'static str],
    /// Words between its options and the command.
    operands: usize,
    /// `NAME=VALUE` may stand before the command.
    assigns: bool,
}

const PLAIN: Launcher = Launcher { name: "", flags: &[], valued: &[], operands: 0, assigns: false };

/// Left out: what makes them work on other processes (`--pid`), what a child does not inherit (`--reset-on-fork`), what
/// cannot have children (`--deadline`), and what takes away systemd's variables (`env -i`).
const LAUNCHERS: [Launcher; 7] = [
    Launcher { name: "kubenswrapper", ..PLAIN },
    Launcher { name: "nice", valued: &["-n", "--adjustment"], ..PLAIN },
    Launcher { name: "ionice", flags: &["-t", "--ignore"], valued: &["-c", "--class", "-n", "--classdata"], ..PLAIN },
    Launcher {
        name: "chrt",
        flags: &["-b", "--batch", "-f", "--fifo", "-i", "--idle", "-o", "--other", "-r", "--rr", "-v", "--verbose"],
        operands: 1,
        ..PLAIN
    },
    Launcher { name: "taskset", flags: &["-c", "--cpu-list"], operands: 1, ..PLAIN },
    Launcher {
        name: "systemd-cat",
        valued: &["-t", "--identifier", "-p", "--priority", "--stderr-priority", "--level-prefix", "--namespace"],
        ..PLAIN
    },
    Launcher { name: "env", valued: &["-u", "--unset", "-C", "--chdir"], assigns: true, ..PLAIN },
];

/// How many of these words are a launcher with its options; none, if the first is none.
///
/// # Errors
/// An option of it that is not known to leave it a launcher.
pub(super) fn length(words: &[&str]) -> Result<Option<usize>, String> {
    let Some((program, rest)) = words.split_first() else { return Ok(None) };
    let Some(launcher) = LAUNCHERS.iter().find(|launcher| launcher.name == base(program)) else { return Ok(None) };
    let mut found = 1;
    let mut rest = rest.iter();
    while let Some(word) = rest.clone().next().filter(|word| word.starts_with('-')) {
        let taken = launcher.option(word)?;
        rest.nth(taken - 1);
        found += taken;
        if *word == "--" {
            break;
        }
    }
    found += launcher.operands + rest.take_while(|word| launcher.assigns && word.contains('=')).count();
    Ok(Some(found))
}

impl Launcher {
    /// How many words an option takes.
    fn option(&self, word: &str) -> Result<usize, String> {
        let (name, attached) = if word.starts_with("--") {
            word.split_once('=').map_or((word, false), |(name, _)| (name, true))
        } else {
            word.split_at_checked(2).map_or((word, false), |(name, rest)| (name, !rest.is_empty()))
        };
        if word == "--" || self.flags.contains(&word) {
            return Ok(1);
        }
        if self.valued.contains(&name) {
            return Ok(if attached { 1 } else { 2 });
        }
        Err(format!("it runs the kubelet by way of {} with {word}, whose effect is not known here", self.name))
    }
}

/// A path's last part.
pub(super) fn base(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// What follows `exec` in `sh -c 'exec …'`, if it says the same without a shell: plain words and blanks.
///
/// Neither the shell nor systemd makes anything of these characters, so the words are systemd's too.
pub(super) fn shell_line<'a>(words: &[&'a str]) -> Option<&'a str> {
    let [shell, "-c", line] = *words else { return None };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=/.,:+@ ".contains(c);
    let line = line.trim().strip_prefix("exec ").filter(|line| line.chars().all(plain))?;
    ["sh", "bash", "dash"].contains(&base(shell)).then(|| line.trim())
}
