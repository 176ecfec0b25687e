//! Configurations by the hundred, valid and nearly so, and the real kubelet (1.20.2) as the judge of what we say of them:
//! whether a text can be loaded, what it comes to with defaults, which fields stand twice or are unknown. It needs the
//! kubelet of the real suite, and no cluster: each is loaded and validated, as in a preflight.
//!
//! What is there by hand and what a fixed seed makes must agree. Texts of a new seed, which each run has, are told if they
//! differ and fail nothing: no commit is to blame for them. `ORACLE_SEED=N` and `ORACLE_TEXTS=N` choose others.
#![cfg(test)]
#![allow(clippy::string_slice, reason = "what is cut is where it was found")]

mod dump;
mod generate;
mod meaning;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use kubelet_config::duration::GoDuration;
use kubelet_config::effective::{self, Sources};
use kubelet_config::flags::{ConfigDir, FlagOverrides, KubeletArgs};
use kubelet_config::rendering::{Configuration, RenderFault, RenderInput, Text, render};
use kubelet_config::schema::FieldProblem;
use kubelet_config::source::Merge;
use kubelet_supervisor::adapters::preflight::classify;
use kubelet_supervisor::adapters::process::ProgramOutput;
use kubelet_supervisor::machine::model::{Exit, Verdict};
use serde_json::Value;

use generate::{Generator, TEXTS};

/// The minor version of the kubelet.
const MINOR: Option<u64> = Some(20);

/// What we refuse and the kubelet would load, by what we say, and why that is meant so.
const STRICTER: &[(&str, &str)] = &[
    ("more than one YAML document", "the kubelet silently ignores all but the first"),
    ("leads out of the payload", "no digest would cover what it names"),
];

/// A seed that every run has, so that a change of the code meets what it met before.
const SEED: u64 = 13;

#[test]
fn what_we_say_of_a_configuration_is_what_the_kubelet_says() {
    let Some(kubelet) = kubelet() else { return };
    let number = |name: &str, default| std::env::var(name).ok().map_or(default, |text| text.parse().unwrap());
    let random =
        u64::from(std::process::id()) << 20 | u64::from(std::time::UNIX_EPOCH.elapsed().unwrap().subsec_micros());
    let (seed, texts) = (number("ORACLE_SEED", random), number("ORACLE_TEXTS", 150));
    println!("ORACLE_SEED={seed} ORACLE_TEXTS={texts}");
    let mut cases: Vec<(String, String)> =
        TEXTS.regressions.iter().map(|text| ("by hand".to_owned(), generate::with_head(text))).collect();
    cases.extend(TEXTS.documents.iter().map(|text| ("by hand, a document".to_owned(), text.clone())));
    for seed in [SEED, seed] {
        cases.extend(
            (0..texts).map(|number| (format!("seed {seed}, text {number}"), Generator::new(seed, number).text())),
        );
    }
    let next = AtomicU64::new(0);
    let dir = tempfile::tempdir().unwrap();
    let work = |worker: usize| {
        let kubelet = Kubelet::new(&kubelet, dir.path().join(worker.to_string()));
        let (mut wrong, mut tally) = (Vec::new(), Tally::new());
        while let number = usize::try_from(next.fetch_add(1, Ordering::Relaxed)).unwrap()
            && let Some((name, text)) = cases.get(number)
        {
            let own = generate::own_file(text, number);
            let (flags, pin) = Generator::new(SEED, (number + text.len()) as u64).flags();
            let found = [
                (text, kubelet.compare(text, &mut tally)),
                (&own, kubelet.compare_own(&own, &mut tally)),
                (text, kubelet.compare_flags(text, &flags, pin, &mut tally)),
                (text, kubelet.compare_spelling(text, &mut tally)),
            ];
            for (text, why) in found.into_iter().filter_map(|(text, found)| Some((text, found.err()?))) {
                wrong.push(format!("{name}: {why}\n--- text\n{text}\n--- {text:?}\n"));
            }
        }
        (wrong, tally)
    };
    let found: Vec<(Vec<String>, Tally)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|worker| {
                scope.spawn({
                    let work = &work;
                    move || work(worker)
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let mut tally = Tally::new();
    for (verdict, count) in found.iter().flat_map(|(_, tally)| tally) {
        *tally.entry(verdict).or_default() += count;
    }
    println!("{} texts: {tally:?}", cases.len());
    let (new, wrong): (Vec<&String>, Vec<&String>) =
        found.iter().flat_map(|(wrong, _)| wrong).partition(|text| text.starts_with(&format!("seed {random},")));
    if !new.is_empty() {
        println!("{} new texts differ:\n{}", new.len(), new.iter().map(|it| it.as_str()).collect::<String>());
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.iter().map(|it| it.as_str()).collect::<String>());
    // All of it was met, or the generator shows nothing.
    for verdict in [
        "valid",
        "load",
        "validate",
        "duplicate",
        "unknown",
        "stricter",
        "own",
        "own, refused",
        "flags",
        "flags, refused",
        "pinned",
        "not as pinned",
        "respelt",
    ] {
        assert!(tally.get(verdict).is_some_and(|count| *count > 1), "no {verdict}: {tally:?}");
    }
}

/// How often each outcome was met.
type Tally = BTreeMap<&'static str, usize>;

/// The real suite's kubelet; none where it cannot be had.
fn kubelet() -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../real/prepare.sh");
    let output = Command::new(script).stdin(Stdio::null()).stderr(Stdio::inherit()).output().unwrap();
    if !output.status.success() {
        assert!(std::env::var_os("CI").is_none(), "the kubelet cannot be had, and this is CI");
        println!("SKIPPED: there is no kubelet");
        return None;
    }
    let text = String::from_utf8(output.stdout).unwrap();
    Some(Path::new(text.lines().last().unwrap()).join("kubelet"))
}

/// What the kubelet says of a file.
struct KubeletVerdict {
    verdict: Verdict,
    /// Its configuration, defaults included, if it got so far.
    dump: Option<Value>,
    /// Its strict pass found a key twice, or an unknown one, which it names.
    duplicate: bool,
    unknown: Option<String>,
}

/// The kubelet's binary, and a directory for what it is given.
struct Kubelet<'a> {
    binary: &'a Path,
    dir: PathBuf,
}

impl<'a> Kubelet<'a> {
    fn new(binary: &'a Path, dir: PathBuf) -> Self {
        std::fs::create_dir_all(&dir).unwrap();
        Self { binary, dir }
    }

    fn load(&self, text: &str) -> KubeletVerdict {
        self.load_with(text, &[])
    }

    fn load_with(&self, text: &str, flags: &[String]) -> KubeletVerdict {
        let path = self.dir.join("kubelet.yaml");
        std::fs::write(&path, text).unwrap();
        let path = path.display().to_string();
        let args = KubeletArgs::parse(flags).for_preflight(
            Some(&path),
            &ConfigDir::Unit,
            &self.dir.join("pki").display().to_string(),
        );
        let mut command = Command::new(self.binary);
        // From 5 on it logs what it goes by. Nothing may be executed, as in a preflight.
        command.args(&args).arg("--v=5").env_clear().env("PATH", "/nonexistent").env("HOME", "/");
        let output = command.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let run = ProgramOutput { exit: output.status.code().map(Exit::Code), output: output.stderr };
        // A flag that cannot be read is refused before anything of the file.
        let verdict = classify(&run).unwrap_or_else(|why| {
            assert!(!flags.is_empty(), "{args:?}: {said}");
            Verdict::Load(why)
        });
        let verdict = match verdict {
            Verdict::Load(why) => Verdict::Load(why.replace(&path, "FILE")),
            Verdict::Validate(why) => Verdict::Validate(why.replace(&path, "FILE")),
            other => other,
        };
        let strict: String = said.split("using lenient decoding").nth(1).unwrap_or_default().to_owned();
        let unknown = strict
            .rsplit_once("found unknown field: ")
            .map(|(_, rest)| rest.split(", error found in #").next().unwrap_or_default().to_owned());
        let duplicate = strict.contains("already set in map");
        let mut dump = dump::read(&said);
        // It is left out of what we render, on purpose: kubelets from v1.24 on refuse it.
        if let Some(all) = dump.as_mut().and_then(|dump| dump.get_mut("FeatureGates"))
            && let Value::Object(gates) = all
        {
            gates.remove("DynamicKubeletConfig");
            if gates.is_empty() {
                *all = Value::Null;
            }
        }
        KubeletVerdict { verdict, dump, duplicate, unknown }
    }

    fn compare(&self, text: &str, tally: &mut Tally) -> Result<(), String> {
        let native = self.load(text);
        let outcome = match &native.verdict {
            Verdict::Valid(_) => "valid",
            Verdict::Load(_) => "load",
            Verdict::Validate(_) => "validate",
            other => return Err(format!("the kubelet says nothing of it: {other:?}")),
        };
        *tally.entry(outcome).or_default() += 1;
        // This gate is taken out of whatever is rendered, with any value: a kubelet alone may stumble over that value.
        if matches!(native.verdict, Verdict::Load(_)) && text.contains("DynamicKubeletConfig") {
            return Ok(());
        }
        let ours = match self.render(Some(text), None) {
            Ok(ours) => ours,
            Err(RenderFault::Payload(why) | RenderFault::Local(why) | RenderFault::DropIn(why)) => {
                let meant = STRICTER.iter().any(|(said, _)| why.contains(said));
                if meant {
                    *tally.entry("stricter").or_default() += 1;
                }
                let agrees = meant || matches!(native.verdict, Verdict::Load(_));
                return if agrees {
                    Ok(())
                } else {
                    Err(format!("we refuse it: {why}; the kubelet: {:?}", native.verdict))
                };
            }
        };
        let given = self.load(&ours.value.to_string());
        let same = match (&native.verdict, &given.verdict) {
            (Verdict::Valid(_), Verdict::Valid(_)) => true,
            // The decoder's message quotes the text.
            (Verdict::Load(_), Verdict::Load(_)) => true,
            // Of several unknown gates it names any: Go's maps have no order.
            (Verdict::Validate(one), Verdict::Validate(other)) => {
                one == other || [one, other].iter().all(|why| why.starts_with("unrecognized feature gate: "))
            }
            (one, other) => one == other,
        };
        if !same {
            return Err(format!(
                "as it is: {:?}; as we render it ({}): {:?}",
                native.verdict, ours.value, given.verdict
            ));
        }
        if let (Some(one), Some(other)) = (&native.dump, &given.dump)
            && dump::differs(one, other)
        {
            return Err(format!(
                "it comes to something else as we render it ({}): {}",
                ours.value,
                dump::difference(one, other)
            ));
        }
        Self::problems(&native, &ours, tally)?;
        let none = KubeletArgs::parse(&[]);
        native.dump.as_ref().map_or(Ok(()), |dump| effective(&ours, &none, dump))
    }

    /// A file of the node: what this kubelet starts with we read, and nothing else; what it only warns of is a note.
    fn compare_own(&self, text: &str, tally: &mut Tally) -> Result<(), String> {
        let native = self.load(text);
        let ours = self.render(None, Some(text));
        let ours = match (&native.verdict, ours) {
            (Verdict::Load(_), Err(_)) => {
                *tally.entry("own, refused").or_default() += 1;
                return Ok(());
            }
            (verdict, Err(why)) => return Err(format!("as an own file we refuse it: {why}; the kubelet: {verdict:?}")),
            (_, Ok(ours)) => ours,
        };
        *tally.entry("own").or_default() += 1;
        let given = self.load(&ours.value.to_string());
        let same = matches!(
            (&native.verdict, &given.verdict),
            (Verdict::Valid(_), Verdict::Valid(_))
                | (Verdict::Load(_), Verdict::Load(_))
                | (Verdict::Validate(_), Verdict::Validate(_))
        );
        if !same {
            return Err(format!("an own file: {:?}; as we read it: {:?}", native.verdict, given.verdict));
        }
        if let (Some(one), Some(other)) = (&native.dump, &given.dump)
            && dump::differs(one, other)
        {
            return Err(format!("an own file comes to something else: {}", dump::difference(one, other)));
        }
        let twice = ours.notes.iter().any(|note| note.starts_with("duplicate field"));
        if !matches!(native.verdict, Verdict::Load(_)) && native.duplicate != twice {
            return Err(format!("in an own file a field stands twice: {}, to us: {twice}", native.duplicate));
        }
        if ours.problems.is_empty() { Ok(()) } else { Err(format!("an own file has problems: {:?}", ours.problems)) }
    }

    fn render(&self, payload: Option<&str>, local: Option<&str>) -> Result<Configuration, RenderFault> {
        let dir = self.dir.display().to_string();
        render(&RenderInput {
            payload: payload.map(|text| Text { text, dir: &dir }),
            local: local.map(|text| Text { text, dir: &dir }),
            merge: Merge::Replace,
            keys: &|_| None,
            configs: None,
            drop_ins: &[],
            args: &KubeletArgs::parse(&[]),
            overrides: &FlagOverrides::default(),
            minor: MINOR,
        })
    }

    /// Fields that stand twice or are unknown. The kubelet's strict pass ends at the first of them.
    fn problems(native: &KubeletVerdict, ours: &Configuration, tally: &mut Tally) -> Result<(), String> {
        if matches!(native.verdict, Verdict::Load(_)) {
            return Ok(()); // refused in either pass, for whatever it stumbled over first
        }
        let twice = ours.problems.iter().any(|problem| matches!(problem, FieldProblem::Duplicate(_)));
        let messages: Vec<String> = ours.problems.iter().filter_map(|problem| problem.message(MINOR)).collect();
        if native.duplicate {
            *tally.entry("duplicate").or_default() += 1;
        }
        if native.duplicate != twice {
            return Err(format!("a field stands twice to the kubelet: {}, to us: {messages:?}", native.duplicate));
        }
        if let Some(field) = &native.unknown {
            *tally.entry("unknown").or_default() += 1;
            let named = |message: &String| {
                message.split([':', ' ', '?']).any(|word| word == field || word.ends_with(&format!(".{field}")))
            };
            if !messages.iter().any(named) {
                return Err(format!("the kubelet does not know {field:?}, and we say {messages:?}"));
            }
        } else if !native.duplicate && native.unknown.is_none() && !messages.is_empty() {
            return Err(format!("the kubelet has no complaint, and we say {messages:?}"));
        }
        Ok(())
    }
}

/// The effective view, defaults included, against what the kubelet goes by.
fn effective(ours: &Configuration, args: &KubeletArgs, dump: &Value) -> Result<(), String> {
    let sources = Sources {
        configuration: &ours.value,
        local: "",
        payload: ours.payload.as_ref().map(|payload| ("payload", payload)),
        drop_ins: &[],
        args,
        added: &KubeletArgs::parse(&[]),
        merges: false,
    };
    let running = dump::leaves(dump);
    let mut compared = 0;
    let mut wrong = Vec::new();
    let fields = effective::fields(&effective::layers(&sources), MINOR);
    let spelt = |path: &str| fields.iter().filter(|field| field.path.eq_ignore_ascii_case(path)).count();
    // Keys of a map may differ in their case alone; the dump is looked up without it.
    for field in fields.iter().filter(|field| spelt(&field.path) == 1) {
        let is_set = |path: &str| {
            fields.iter().any(|field| field.path == path && !matches!(field.value.as_str(), None | Some("")))
        };
        // They become "/", and what `reservedSystemCPUs` says, after that line was logged.
        let later = |path: &str| path == "cgroupRoot" || (path == "systemReserved.cpu" && is_set("reservedSystemCPUs"));
        let Some(value) = running.get(&field.path.to_ascii_lowercase()).filter(|_| !later(&field.path)) else {
            continue;
        };
        let same = match &field.value {
            Value::Null => continue, // it depends on the node
            // Of a map that has become empty.
            Value::Object(fields) if fields.is_empty() => value == &field.value || value.is_null(),
            Value::String(text) => {
                let (sign, length) = text.strip_prefix('-').map_or((1, text.as_str()), |rest| (-1, rest));
                let nanos = length.parse::<GoDuration>().ok().and_then(|it| i128::try_from(it.0.as_nanos()).ok());
                let dumped = value.as_i64().map(i128::from);
                value == &field.value || (dumped.is_some() && dumped == nanos.map(|nanos| sign * nanos))
            }
            // Any number below zero is no limit, and it says so with -1.
            Value::Number(number) if field.path == "podPidsLimit" && value == -1 => {
                number.as_i64().is_some_and(|limit| limit < 0)
            }
            other => value == other,
        };
        compared += 1;
        if !same {
            wrong.push(format!("{} is {value}, and we say {} ({})", field.path, field.value, field.origin.kind()));
        }
    }
    if compared < 50 {
        return Err(format!("only {compared} fields were compared"));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}
