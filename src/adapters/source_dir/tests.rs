use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::sys::inotify::{AddWatchFlags, InotifyEvent};

use super::*;

const LONG: Duration = Duration::from_secs(20);

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn task(dir: &Path) -> (DirWatchTask, UnboundedReceiver<Input>) {
    let (inputs, queue) = unbounded_channel();
    let dir = dir.to_owned();
    let task = DirWatchTask {
        dir,
        key: "kubelet".to_owned(),
        inputs,
        last_sent: LastSent::Nothing,
        last_logged: String::new(),
        unwatched: None,
        since: None,
    };
    (task, queue)
}

fn reading(seen: DirContent) -> DirReading {
    DirReading { dir_id: (1, 1), unwatched: None, seen }
}

fn version(text: &str) -> DirContent {
    let data = [("kubelet".to_owned(), text.to_owned())].into();
    DirContent::Payload(std::sync::Arc::new(kubelet_config::source_dir::payload(
        data,
        kubelet_config::source::ConfigAnnotations::default(),
    )))
}

/// What the machine is told, in a word each.
fn sent(queue: &mut UnboundedReceiver<Input>) -> Vec<String> {
    std::iter::from_fn(|| queue.try_recv().ok())
        .map(|input| match input {
            Input::Node(Assignment::Local) => "local".to_owned(),
            Input::Node(Assignment::Map(reference)) => reference.to_string(),
            Input::ConfigMap(payload) => payload.data["kubelet"].clone(),
            Input::ConfigMapFailed { why, definite: true } => why,
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn the_machine_is_notified_once_and_again_when_it_asks() {
    let (mut task, mut queue) = task(Path::new("/d"));
    let mut asked = false;
    for (seen, expected) in [
        (DirContent::Missing("/d: not there".to_owned()), vec![]),
        (DirContent::Empty, vec!["local"]),
        (DirContent::Empty, vec![]),
        (version("a"), vec!["local/source-dir[kubelet]", "a"]),
        (version("a"), vec![]),
        (DirContent::Undecided("x".to_owned()), vec![]),
        (DirContent::Missing("/d: gone".to_owned()), vec![]),
        (version("a"), vec![]),
        (DirContent::Unusable("too big".to_owned()), vec!["local/source-dir[kubelet]", "too big"]),
        (DirContent::Unusable("too big".to_owned()), vec![]),
        (version("a"), vec!["local/source-dir[kubelet]", "a"]),
    ] {
        assert_eq!(task.report(reading(seen.clone()), &mut asked), None);
        assert_eq!(sent(&mut queue), expected, "{seen:?}");
    }
    // A question stays one until there is an answer.
    asked = true;
    assert_eq!(task.report(reading(DirContent::Changing("x".to_owned())), &mut asked), Some(SETTLE));
    assert_eq!(task.report(reading(DirContent::BeingWritten("x".to_owned())), &mut asked), Some(PATIENCE));
    assert!(asked && sent(&mut queue).is_empty());
    task.report(reading(version("a")), &mut asked);
    assert_eq!(sent(&mut queue), ["local/source-dir[kubelet]", "a"]);
    assert!(!asked);
}

#[test]
fn without_inotify_two_readings_must_agree() {
    let (mut task, mut queue) = task(Path::new("/d"));
    let mut unwatched = |text: &str| {
        let error = std::io::Error::from(std::io::ErrorKind::QuotaExceeded);
        let again = task.report(DirReading { unwatched: Some(error), ..reading(version(text)) }, &mut true);
        assert_eq!(again, Some(SLOW));
        sent(&mut queue)
    };
    assert!(unwatched("half").is_empty());
    assert!(unwatched("whole").is_empty());
    assert_eq!(unwatched("whole").last().map(String::as_str), Some("whole"));
}

#[test]
fn a_burst_is_waited_for_but_not_for_ever() {
    let begin = Instant::now();
    let mut due = NextRead::after(begin, SETTLE, None, true);
    assert_eq!((due.at, due.mounts_only), (begin + SETTLE, true));
    for millis in (100..5000).step_by(100) {
        due = NextRead::after(begin + Duration::from_millis(millis), SETTLE, Some(due), false);
    }
    assert_eq!((due.at, due.mounts_only), (begin + SETTLE_MOST, false));
    // An event brings a far look nearer; mounts do not make it a lesser one.
    let far = NextRead::after(begin, SLOW, None, false);
    let near = NextRead::after(begin, SETTLE, Some(far), true);
    assert_eq!((near.at, near.mounts_only), (begin + SETTLE, false));
    assert!(NextRead::after(begin + SLOW, SETTLE, Some(far), false).at <= far.at.max(begin + SLOW));
}

/// Looks as the task does, and waits for what is said of it.
async fn touch(watcher: &mut DirWatcher, task: &mut DirWatchTask, act: impl FnOnce()) -> Change {
    task.observe(watcher, None).await.unwrap();
    act();
    loop {
        match tokio::time::timeout(LONG, watcher.change()).await.expect("it is noticed") {
            Change::Files => return Change::Files,
            // Somebody else's, on a machine that is in use.
            Change::Mounts | Change::Nothing => {}
        }
    }
}

/// Everything that can change what the path means is noticed, wherever it happens.
#[test]
fn each_link_and_each_parent_is_watched() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    let source = at("a/b/current");
    let (mut task, _queue) = task(&source);
    runtime().block_on(async {
        let mut watcher = DirWatcher::open();
        let steps: [(&str, &dyn Fn()); 10] = [
            ("a parent", &|| fs::create_dir(at("a")).unwrap()),
            ("the next", &|| fs::create_dir(at("a/b")).unwrap()),
            ("a link to nothing", &|| symlink("../../releases/7", at("a/b/current")).unwrap()),
            ("where it leads", &|| fs::create_dir(at("releases")).unwrap()),
            ("the directory", &|| fs::create_dir(at("releases/7")).unwrap()),
            ("a link in it", &|| symlink("../../shared/kubelet", at("releases/7/kubelet")).unwrap()),
            ("where that leads", &|| fs::create_dir(at("shared")).unwrap()),
            ("the file at last", &|| fs::write(at("shared/kubelet"), "x").unwrap()),
            ("the file behind the link", &|| fs::write(at("shared/kubelet"), "y").unwrap()),
            ("a parent goes", &|| fs::rename(at("a"), at("z")).unwrap()),
        ];
        for (what, act) in steps {
            assert_eq!(touch(&mut watcher, &mut task, act).await, Change::Files, "{what}");
        }
        let reading = task.observe(&mut watcher, None).await.unwrap();
        assert!(matches!(reading.seen, DirContent::Missing(_)));
        assert_eq!(reading.unwatched.map(|error| error.to_string()), None);
    });
}

#[test]
fn a_reading_wakes_nobody_and_strangers_do_not_matter() {
    let home = tempfile::tempdir().unwrap();
    let source = home.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("kubelet"), "x").unwrap();
    let (mut task, _queue) = task(&source);
    runtime().block_on(async {
        let mut watcher = DirWatcher::open();
        for _ in 0..3 {
            assert!(matches!(task.observe(&mut watcher, None).await.unwrap().seen, DirContent::Payload(_)));
        }
        fs::write(home.path().join("stranger"), "x").unwrap();
        fs::write(source.join(".hidden"), "x").unwrap();
        // Events come in order: what is heard up to the last one is all there is.
        symlink("x", source.join("last")).unwrap();
        let mut heard = Vec::new();
        while !watcher.writing.keys().any(|(_, name)| name == "last") && heard.len() < 50 {
            heard.push(tokio::time::timeout(LONG, watcher.change()).await.unwrap());
        }
        assert!(heard.iter().filter(|change| **change == Change::Files).count() <= 1, "{heard:?}");
        assert_eq!(watcher.dirs.len(), source.components().count(), "each directory once");
    });
}

#[test]
fn an_overflow_and_a_lost_watch_mean_another_reading() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("kubelet"), "x").unwrap();
    let (mut task, _queue) = task(home.path());
    runtime().block_on(async {
        let mut watcher = DirWatcher::open();
        task.observe(&mut watcher, None).await.unwrap();
        let wd = *watcher.dirs.keys().next().unwrap();
        let event = |mask| InotifyEvent { wd, mask, cookie: 0, name: None };
        watcher.writing.insert((wd, "kubelet".into()), true);
        assert!(watch::record_event(&event(AddWatchFlags::IN_Q_OVERFLOW), &mut watcher.dirs, &mut watcher.writing));
        assert!(watcher.writing.is_empty(), "its end may be what was lost");
        let before = watcher.dirs.len();
        assert!(watch::record_event(&event(AddWatchFlags::IN_IGNORED), &mut watcher.dirs, &mut watcher.writing));
        assert!(
            !watch::record_event(&event(AddWatchFlags::IN_IGNORED), &mut watcher.dirs, &mut watcher.writing),
            "ours, by now"
        );
        task.observe(&mut watcher, None).await.unwrap();
        assert_eq!(watcher.dirs.len(), before, "watched again");
        // The same directory at the same place: a mount elsewhere is none of ours.
        assert!(task.observe(&mut watcher, Some(read::dir_id(home.path()))).await.is_none());
    });
}
