//! What configurations do to the kubelet that is given them.

use kubelet_supervisor::machine::evidence::{Baseline, Signal};

/// What a configuration does to the kubelet that is given it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Behaviour {
    #[default]
    Good,
    /// Works, but the preflight cannot tell.
    Mute,
    /// Not a KubeletConfiguration.
    Unloadable,
    /// The preflight refuses it, and so does the kubelet.
    Invalid,
    /// It has a field that no kubelet knows, which worlds refuse that are told to.
    Misspelt,
    /// Works, but has a field that the node's policy forbids.
    Forbidden,
    /// Passes the preflight and dies before it is ready.
    DiesAtOnce,
    /// Dies so many seconds after it is ready.
    DiesAfter(u64),
    NeverReady,
    /// READY=1 comes, but healthz never answers.
    HalfReady,
    /// healthz fails so many seconds after it is ready, for good.
    SickAfter(u64),
    /// healthz fails once, 20 s after it is ready, and recovers.
    Hiccup,
    /// healthz fails for 10 s of every 30 s: too short to fail a trial, too often to pass one.
    Flaps,
    /// Works, but does not mind SIGTERM.
    Stubborn,
    /// Works, but takes 9 s to end.
    SlowToStop,
    /// While it runs, the node does not reach the API server.
    CutsOff,
    /// Its Node stays NotReady.
    NotReady,
    /// Its watchdog pings stop so many seconds after it is ready.
    SilentAfter(u64),
    /// Running pods are turned away.
    LosesPods,
    /// It no longer renews its Lease.
    LeavesLease,
}

/// What a trial of a behaviour comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passes,
    Fails,
    /// Neither passes nor fails.
    Stays,
    /// It depends on what was seen before a boot.
    Either,
}

impl Behaviour {
    /// A payload with this behaviour; `salt` makes contents differ.
    pub fn text(self, salt: u64) -> String {
        let kind = if self == Self::Unloadable { "Pod" } else { "KubeletConfiguration" };
        let word = match self {
            Self::DiesAfter(seconds) => format!("dies-{seconds}"),
            Self::SickAfter(seconds) => format!("sick-{seconds}"),
            Self::SilentAfter(seconds) => format!("silent-{seconds}"),
            other => format!("{other:?}"),
        };
        let more = match self {
            Self::Misspelt => "maxpods: 1\n",
            Self::Forbidden => "readOnlyPort: 10255\n",
            _ => "",
        };
        // In a field where any key will do.
        let head = format!("kind: {kind}\napiVersion: kubelet.config.k8s.io/v1beta1\n{more}staticPodURLHeader:\n");
        format!("{head}  behaviour: {word}\n  salt: {salt}\n")
    }

    /// A local file with this behaviour; `base` makes its editions differ.
    pub fn local_text(self, base: u64) -> String {
        let text = self.text(0);
        if base == 0 { text } else { format!("{text}  base: {base}\n") }
    }

    /// Reads it back from the text of a payload or a rendered configuration.
    pub fn of(text: &str) -> Self {
        let word = text.split("behaviour").nth(1).unwrap_or_default();
        let word = word.trim_start_matches(|c: char| !c.is_alphanumeric());
        let word = word.split(|c: char| !c.is_alphanumeric() && c != '-').next().unwrap_or_default();
        let (word, number) = word.split_once('-').unwrap_or((word, "0"));
        let number = number.parse().unwrap_or_default();
        match word {
            "Good" => Self::Good,
            "Mute" => Self::Mute,
            "Unloadable" => Self::Unloadable,
            "Misspelt" => Self::Misspelt,
            "Forbidden" => Self::Forbidden,
            "DiesAtOnce" => Self::DiesAtOnce,
            "NeverReady" => Self::NeverReady,
            "HalfReady" => Self::HalfReady,
            "Hiccup" => Self::Hiccup,
            "Flaps" => Self::Flaps,
            "Stubborn" => Self::Stubborn,
            "SlowToStop" => Self::SlowToStop,
            "CutsOff" => Self::CutsOff,
            "NotReady" => Self::NotReady,
            "LosesPods" => Self::LosesPods,
            "LeavesLease" => Self::LeavesLease,
            "dies" => Self::DiesAfter(number),
            "sick" => Self::SickAfter(number),
            "silent" => Self::SilentAfter(number),
            _ => Self::Invalid,
        }
    }

    /// What becomes of its trial when it is judged by these signals.
    pub fn outcome(self, baseline: Option<&Baseline>) -> Outcome {
        let judged = |signal| baseline.map_or(signal == Signal::Healthz, |baseline| baseline.contains(&signal));
        let fails_by = |signal| if judged(signal) { Outcome::Fails } else { Outcome::Passes };
        match self {
            Self::Good | Self::Mute | Self::Forbidden | Self::Hiccup | Self::Stubborn | Self::SlowToStop => {
                Outcome::Passes
            }
            Self::CutsOff | Self::NotReady | Self::SilentAfter(_) | Self::LeavesLease => {
                self.betrayed_by().map_or(Outcome::Passes, fails_by)
            }
            // What flaps for long enough fails.
            Self::LosesPods | Self::Flaps => Outcome::Either,
            // Who was sick before does not fail for it, but earns nothing by it either.
            Self::HalfReady | Self::SickAfter(_) if !judged(Signal::Healthz) => Outcome::Stays,
            _ => Outcome::Fails,
        }
    }

    /// The signal that goes bad for good though the kubelet itself is fine.
    pub fn betrayed_by(self) -> Option<Signal> {
        match self {
            Self::CutsOff => Some(Signal::ApiServer),
            Self::NotReady => Some(Signal::NodeReady),
            Self::SilentAfter(_) => Some(Signal::Watchdog),
            Self::LeavesLease => Some(Signal::Lease),
            _ => None,
        }
    }

    /// True if it survives any trial.
    pub fn works(self) -> bool {
        self.outcome(Some(&Signal::ALL.into())) == Outcome::Passes
    }

    /// True if the kubelet itself is fine and the cluster around it sees what is wrong.
    pub fn is_seen_from_afar(self) -> bool {
        self.outcome(Some(&Baseline::new())) == Outcome::Passes && !self.works() || self == Self::LosesPods
    }
}

/// A behaviour and what tells its texts apart. Equal contents have equal digests, however their
/// texts are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub behaviour: Behaviour,
    pub(super) salt: u64,
    /// What an overlay takes from the local file.
    pub base: u64,
}

impl Content {
    pub fn of(text: &str) -> Self {
        let number = |key: &str| {
            let after = text.split(key).nth(1).unwrap_or_default();
            let digits = after.trim_start_matches(|c: char| !c.is_ascii_digit());
            digits.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default().parse().unwrap_or_default()
        };
        Self { behaviour: Behaviour::of(text), salt: number("salt"), base: number("base") }
    }

    /// The flags that its source has beside it, if it has any.
    pub fn flags(self) -> Option<String> {
        (self.salt > 0).then(|| format!("--node-labels=salt={}", self.salt))
    }

    /// It, laid over the local file.
    pub fn over(self, local: Self) -> Self {
        Self { base: local.base, ..self }
    }
}
