//! Bytes in the store that change behind the supervisor's back while the kubelet runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use testkit::rig::{Rig, configuration, eventually_within};

fn only_entry(dir: &Path) -> PathBuf {
    let mut entries: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries.remove(0)
}

/// An event that says of this file what became of it.
fn wait_event(rig: &Rig, file: &Path, words: &str) {
    let says = |event: &serde_json::Value| {
        let message = event["message"].as_str().unwrap_or_default();
        event["reason"] == "KubeletConfigDrift"
            && event["type"] == "Warning"
            && message.contains(&file.display().to_string())
            && message.contains(words)
    };
    rig.server
        .wait_event(Duration::from_secs(120), says)
        .unwrap_or_else(|error| panic!("{file:?}: {error}\n{}", rig.log()));
}

#[test]
fn what_can_be_made_again_is_put_right_while_the_kubelet_runs() {
    let rig = Rig::new().running();
    let version = rig.prove("a", &configuration("maxPods: 42"));
    let (starts, pid) = (rig.starts(), rig.last_pid());
    let store = rig.at("dynamic");
    let config = only_entry(&store.join("supervisor/configs")).join("kubelet.json");
    let checkpoint = store.join("store/checkpoints").join(&version.0).join(&version.1);
    let state = store.join("supervisor/state.json");

    // An edit, a file that is gone, and all of it.
    for (damage, file) in [
        (Box::new(|| fs::write(&config, "{}").unwrap()) as Box<dyn Fn()>, &config),
        (Box::new(|| fs::remove_file(&config).unwrap()), &config),
        (Box::new(|| fs::write(&state, "{}").unwrap()), &state),
        (Box::new(|| fs::remove_file(&state).unwrap()), &state),
    ] {
        let before = fs::read_to_string(file).unwrap();
        damage();
        eventually_within(Duration::from_secs(120), &format!("{} is as it was", file.display()), || {
            (fs::read_to_string(file).ok()? == before).then_some(())
        });
        wait_event(&rig, file, "written again");
    }
    // A checkpoint comes from the API server.
    fs::write(checkpoint.join("kubelet"), "something else").unwrap();
    wait_event(&rig, &checkpoint, "it is downloaded again");
    eventually_within(Duration::from_secs(120), "the checkpoint is as it was", || {
        (fs::read_to_string(checkpoint.join("kubelet")).ok()? == configuration("maxPods: 42")).then_some(())
    });
    // After damage upon damage the pauses before the next verification are longer.
    eventually_within(Duration::from_secs(300), "nothing is left to tell", || {
        rig.status()["drift"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
    assert_eq!((rig.starts(), rig.last_pid()), (starts, pid));
}
