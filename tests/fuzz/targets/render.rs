//! YAML, rendering and flags: what comes of a payload is the same however it is spelt, and however often it is rendered.

use kubelet_config::flags::{FlagOverrides, KubeletArgs};
use kubelet_config::own_files::DropIn;
use kubelet_config::rendering::{Configuration, RenderFault, RenderInput, Text, render};
use kubelet_config::source::Merge;
use kubelet_config::yaml;

/// A payload, a local file, a drop-in and flags.
pub(crate) fn check(data: &[u8]) {
    let Some([payload, local, drop_in, flags]) = super::texts(data) else { return };
    for text in [payload, local, drop_in] {
        spelling(text);
    }
    let overrides = FlagOverrides::parse(flags).unwrap_or_else(|why| {
        super::assert_message(&why, 1024);
        FlagOverrides::default()
    });
    let again = FlagOverrides::parse(&overrides.lines().join("\n"));
    assert_eq!(again.as_ref(), Ok(&overrides), "flags that are printed and read again");
    for merge in [Merge::Replace, Merge::Overlay] {
        rendering(payload, Some(local).filter(|local| !local.is_empty()), drop_in, &overrides, merge);
    }
}

/// A document means the same as JSON, and as the YAML that the plugin writes.
fn spelling(text: &str) {
    match yaml::parse(text) {
        Err(why) => super::assert_message(&why, 1024),
        Ok(document) => {
            if let Some(what) = &document.duplicate {
                super::assert_message(what, 1024);
            }
            let value = document.value;
            for text in [Ok(value.to_string()), serde_yaml::to_string(&value).map_err(|error| error.to_string())] {
                let text = text.unwrap_or_else(|why| panic!("{value} cannot be written: {why}"));
                let again = yaml::parse(&text).unwrap_or_else(|why| panic!("{text:?}, as {value}: {why}"));
                assert_eq!((again.value, again.duplicate), (value.clone(), None), "{text:?}");
            }
        }
    }
}

fn rendering(payload: &str, local: Option<&str>, drop_in: &str, overrides: &FlagOverrides, merge: Merge) {
    let args = KubeletArgs::parse(&["--v=2".to_owned(), "--max-pods=7".to_owned()]);
    let drop_ins = [DropIn::new("/etc/k/conf.d/10.conf", drop_in)];
    let run = |payload: &str, local: Option<&str>| {
        render(&RenderInput {
            payload: Some(Text { text: payload, dir: "/d/1" }),
            local: local.map(|text| Text { text, dir: "/etc/k" }),
            merge,
            keys: &|key| (key == "ca.crt").then(|| "CA".to_owned()),
            configs: None,
            drop_ins: &drop_ins,
            args: &args,
            overrides,
            minor: Some(30),
        })
    };
    let first = match run(payload, local) {
        Ok(first) => first,
        Err(RenderFault::Payload(why) | RenderFault::Local(why) | RenderFault::DropIn(why)) => {
            return super::assert_message(&why, 4096);
        }
    };
    assert!(first.effective.is_object(), "{}", first.effective);
    let same = |other: &Configuration, why: &str| {
        let parts =
            |it: &Configuration| (it.value.clone(), it.digest.clone(), it.effective.clone(), it.healthz.clone());
        assert_eq!(parts(other), parts(&first), "{why}");
    };
    // Content is identity: another spelling of it is no change.
    if let Ok(document) = yaml::parse(payload) {
        let other = run(&document.value.to_string(), local).unwrap_or_else(|why| panic!("as JSON: {why}"));
        same(&other, "the payload as JSON");
    }
    // What was rendered is complete: nothing of it changes if it is a payload itself. (The digest does, where a path is
    // absolute now.)
    let again = run(&first.value.to_string(), None).unwrap_or_else(|why| panic!("rendered again: {why}"));
    assert_eq!((&again.value, &again.effective, &again.healthz), (&first.value, &first.effective, &first.healthz));
}
