//! The duties of a process that owns another: arguments, environment, output, signals, death.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use testkit::built::write_script;
use testkit::rig::{Rig, SOON, STANDBY_LOCK, configuration, eventually, is_gone};

fn strings(value: &serde_json::Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

fn environment(pid: u64) -> Vec<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    String::from_utf8_lossy(&bytes).split_terminator('\0').map(str::to_owned).collect()
}

/// Puts a shell script where the kubelet belongs. Runs that are not meant to last (`--version`, preflights) end.
fn script(rig: &mut Rig, body: &str) {
    let path = rig.at("script");
    write_script(&path, &format!("case \"$*\" in *--version*|*--lock-file=*) exit 1;; esac\n{body}"));
    rig.program = path;
}

#[test]
fn arguments_are_passed_and_the_configuration_replaced_only_when_a_source_is_active() {
    let mut rig = Rig::long_trial();
    let native = rig.at("native").display().to_string();
    rig.args.extend(["--dynamic-config-dir".to_owned(), native, "-v".to_owned(), "2".to_owned()]);
    rig.up();
    let given: Vec<String> = rig.args.iter().filter(|word| !word.contains("native")).cloned().collect();
    let given: Vec<String> = given.into_iter().filter(|word| word != "--dynamic-config-dir").collect();
    assert_eq!(strings(&rig.kubelet.starts()[0]["args"]), given);

    rig.apply("a", &configuration("maxPods: 42"));
    let args = strings(&rig.kubelet.starts()[1]["args"]);
    let config = args.iter().find_map(|word| word.strip_prefix("--config=")).unwrap();
    let below = rig.at("dynamic/supervisor/configs").display().to_string();
    assert!(config.starts_with(&below) && config.ends_with("/kubelet.json"), "{config}");
    assert!(args.contains(&STANDBY_LOCK.to_owned()), "it stood by: {args:?}");
    let is_ours = |word: &str| word.starts_with("--config=") || word == STANDBY_LOCK;
    let rest = |words: &[String]| words.iter().filter(|word| !is_ours(word)).cloned().collect::<Vec<_>>();
    assert_eq!(rest(&args), rest(&given));
}

/// At its first start, and not by the next supervisor.
#[test]
fn a_binary_is_asked_for_its_version_once() {
    let mut rig = Rig::long_trial();
    let (asked, path, kubelet) = (rig.at("asked"), rig.at("script"), rig.program.clone());
    let note = format!("case \"$*\" in --version) echo >>{};; esac", asked.display());
    write_script(&path, &format!("{note}\nexec {} \"$@\"", kubelet.display()));
    rig.program = path;
    rig.up();
    let is_asked_once = |rig: &Rig, name: &str, text: &str| {
        rig.apply(name, &configuration(text)); // its preflight comes after the self-test
        rig.wait_status("the version is known", |status| status["kubelet"]["version"] == "v1.20.2");
        assert_eq!(std::fs::read_to_string(&asked).unwrap().lines().count(), 1, "with {name}");
    };
    is_asked_once(&rig, "a", "maxPods: 42");
    rig.restart();
    is_asked_once(&rig, "b", "maxPods: 43");
}

#[test]
fn the_environment_is_kept_but_for_the_service_managers() {
    let mut rig = Rig::long_trial();
    let socket = rig.at("notify");
    let _socket = UnixDatagram::bind(&socket).unwrap();
    rig.env = vec![
        ("KUBELET_EXTRA".to_owned(), "a b=c".to_owned()),
        ("NOTIFY_SOCKET".to_owned(), socket.display().to_string()),
        ("WATCHDOG_USEC".to_owned(), "60000000".to_owned()),
    ];
    rig.up();
    let env = environment(rig.last_pid());
    let pid = rig.pid();
    assert!(env.contains(&"KUBELET_EXTRA=a b=c".to_owned()));
    let ours = |entry: &String| {
        entry
            .strip_prefix("NOTIFY_SOCKET=")
            .is_some_and(|name| !name.is_empty() && name != socket.display().to_string())
    };
    assert!(env.iter().any(ours), "{env:?}");
    let watchdog: Vec<_> = env.iter().filter(|entry| entry.starts_with("WATCHDOG_")).collect();
    assert_eq!(watchdog, ["WATCHDOG_USEC=60000000"], "systemd's interval; it pings the supervisor");
    let cgroup = |pid: u64| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    assert_eq!(cgroup(rig.last_pid()), cgroup(pid));
}

#[test]
fn output_passes_through_untouched() {
    let mut rig = Rig::long_trial();
    // Bytes that are no text, and no line end at the end.
    script(
        &mut rig,
        "printf 'out\\377\\000\\r\\n<1>x'; printf 'err\\376 no end' >&2; trap 'exit 0' TERM; sleep 600 & wait",
    );
    rig.start();
    eventually("the output", || {
        let (out, err) = (std::fs::read(rig.at("stdout")).ok()?, std::fs::read(rig.at("stderr")).ok()?);
        let err_there = err.windows(11).any(|part| part == b"err\xfe no end");
        (out == b"out\xff\0\r\n<1>x" && err_there).then_some(())
    });
}

#[test]
fn a_flood_of_the_kubelet_arrives_complete_and_in_order() {
    let mut rig = Rig::long_trial();
    rig.local("standIn: {flood: 50000}");
    rig.up();
    rig.stop();
    let log = rig.log();
    let flood = log.lines().filter_map(|line| line.split_once("] flood line ")?.1.parse::<usize>().ok());
    assert!(flood.eq(0..50_000), "of {} lines", log.lines().count());
    // Beside it all that it said.
    for text in ["server.go:416] Version: v1.20.2", "Started kubelet"] {
        assert!(log.contains(text), "{text}");
    }
    let is_whole = |line: &&str| line.starts_with("kubelet-supervisor: ") || line.contains(".go:");
    assert_eq!(log.lines().find(|line| !is_whole(line)), None, "no line is torn");
}

#[test]
fn the_reason_of_a_death_is_in_the_log_before_what_follows_from_it() {
    let mut rig = Rig::long_trial();
    rig.local("standIn: {exitBeforeReady: 255, flood: 2000}");
    rig.start();
    rig.wait_log("ended by itself after");
    let log = rig.log();
    let (reason, end) = (log.find("the stand-in was told to exit"), log.find("ended by itself after"));
    assert!(reason.is_some() && reason < end, "{log}");
    assert!(log.contains("goroutine 113 [chan receive]:"));
}

#[test]
fn other_signals_are_passed_on() {
    let mut rig = Rig::long_trial();
    script(
        &mut rig,
        "trap 'echo USR1' USR1; trap 'echo USR2' USR2; trap 'kill $!; exit 0' TERM; echo up\n\
         while :; do sleep 600 & wait; kill $!; done",
    );
    rig.start();
    let out = |text: &str| {
        eventually(text, || std::fs::read_to_string(rig.at("stdout")).ok().filter(|out| out.contains(text)));
    };
    out("up");
    for (signal, text) in [(Signal::SIGUSR1, "USR1"), (Signal::SIGUSR2, "USR2")] {
        rig.signal(signal);
        out(text);
    }
    rig.stop();
}

#[test]
fn the_first_sigterm_is_a_graceful_stop() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut rig = Rig::long_trial();
        rig.local("standIn: {stopDelay: 300ms}");
        rig.up();
        let pid = rig.last_pid();
        rig.signal(signal);
        assert_eq!(rig.wait_exit().code(), Some(0));
        assert!(is_gone(pid));
        let mut last = rig.kubelet.entries();
        last.retain(|entry| entry["pid"] == pid);
        let kinds: Vec<_> = last.iter().rev().take(2).map(|entry| entry["event"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["exit", "signal"], "one signal, then its own exit");
        assert_eq!(last.last().unwrap()["code"], 0);
    }
}

#[test]
fn the_second_sigterm_ends_at_once() {
    let mut rig = Rig::long_trial();
    rig.local("standIn: {ignoreSigterm: true}");
    rig.up();
    let pid = rig.last_pid();
    rig.signal(Signal::SIGTERM);
    rig.kubelet.wait(SOON, |all| all.iter().any(|e| e["event"] == "signal").then_some(())).unwrap();
    let begin = Instant::now();
    rig.signal(Signal::SIGTERM);
    rig.wait_exit();
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    eventually("the kubelet is gone", || is_gone(pid).then_some(()));
}

#[test]
fn a_kubelet_that_ends_is_restarted_with_back_off_whatever_its_exit_code() {
    let mut rig = Rig::long_trial();
    rig.local("standIn: {exitAfterReady: 10ms, exitCode: 0}");
    rig.start();
    let begin = Instant::now();
    rig.wait_starts(3);
    // 1 s and 2 s, less nothing.
    assert!(begin.elapsed() >= Duration::from_millis(2900), "{:?}", begin.elapsed());
    // The third may have ended already.
    assert!(rig.metric("kubelet_supervisor_kubelet_restarts_total{cause=\"exit\"}") >= Some(2.0));
    assert!(rig.log().contains("ended by itself after"), "{}", rig.log());
    rig.stop();
}

#[test]
fn the_kubelet_dies_with_the_supervisor() {
    let mut rig = Rig::long_trial();
    rig.local("standIn: {ignoreSigterm: true}");
    rig.up();
    rig.kill();
}

#[test]
fn systemd_is_notified() {
    let mut rig = Rig::long_trial();
    rig.local("standIn: {startDelay: 300ms}");
    let path = rig.at("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    rig.env = vec![("NOTIFY_SOCKET".to_owned(), path.display().to_string())];
    rig.start();
    let receive = || {
        let mut buffer = [0; 4096];
        loop {
            match socket.recv(&mut buffer) {
                Ok(length) => return String::from_utf8_lossy(&buffer[..length]).into_owned(),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => panic!("no message: {error}"),
            }
        }
    };
    let until = |word: &str| {
        let mut heard = String::new();
        loop {
            let message = receive();
            heard.push_str(&message);
            heard.push('\n');
            if message.lines().any(|line| line == word) {
                return heard;
            }
            assert!(word == "READY=1" || !message.contains("READY=1"), "once is enough: {message}");
        }
    };
    let heard = until("READY=1");
    assert_eq!(rig.readies(), 1, "not before the kubelet");
    assert!(heard.contains("STATUS=kubelet"), "{heard}");
    rig.signal(Signal::SIGTERM);
    until("STOPPING=1");
    assert_eq!(rig.wait_exit().code(), Some(0));
}

/// Options it cannot go by: a person is told, a node gets its kubelet.
#[test]
fn a_bad_option_of_ours_costs_no_node() {
    for (option, value) in [("--trial-duration", "soon"), ("--metrics-bind-address", "localhost:x"), ("--no-such", "x")]
    {
        let mut rig = Rig::new();
        rig.option(option, value);
        rig.start();
        assert_eq!(rig.wait_exit().code(), Some(64), "{option}: {}", rig.log());
        assert_eq!(rig.starts(), 0);
        rig.env = vec![("INVOCATION_ID".to_owned(), "x".to_owned())];
        rig.start();
        rig.wait_starts(1);
        assert!(rig.log().contains("runs unsupervised until they are mended"), "{}", rig.log());
        rig.stop();
    }
}

/// Law 1, before there is anything to supervise with: here for want of file descriptors.
#[test]
fn a_supervisor_that_cannot_begin_becomes_the_kubelet() {
    let mut rig = Rig::new();
    rig.program = "/bin/echo".into(); // which needs no file descriptor
    for limit in 8..16 {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "ulimit -n $1; shift; exec timeout 10 \"$@\"", "sh", &limit.to_string()]);
        command.arg(rig.command().get_program()).args(rig.command().get_args());
        let (code, stdout, stderr) = testkit::rig::exit_and_output(&command.output().unwrap());
        if stderr.contains("the supervisor cannot begin") {
            assert_eq!((code, stdout.trim_end()), (0, rig.args.join(" ").as_str()), "{stderr}");
            return;
        }
    }
    panic!("no limit was between too low to run at all and high enough");
}
