//! Sources and payloads, and a fault at each operation of a disk.

use std::path::Path;

use kubelet_config::source::{ConfigAnnotations, ConfigMapRef, Payload, Source};
use kubelet_supervisor::adapters::store::FsStore;
use testkit::sim::Rng;
use testkit::sim::disk::{Fault, Plan, SimDisk};
use testkit::sim::world::ROOT;

pub fn store(disk: &SimDisk) -> FsStore<SimDisk> {
    FsStore::new(disk.clone(), Path::new(ROOT))
}

/// A version of one ConfigMap.
pub fn source(version: u32) -> Source {
    Source {
        reference: ConfigMapRef {
            namespace: "kube-system".to_owned(),
            name: "pool".to_owned(),
            kubelet_config_key: "kubelet".to_owned(),
        },
        resource_version: version.to_string(),
        uid: "6a1f0000-0000-4000-8000-000000000001".to_owned(),
    }
}

/// What that version holds: a configuration that names another key.
pub fn payload(source: &Source, text: &str) -> Payload {
    let data = [("kubelet", text), ("ca.crt", "a certificate\n")];
    Payload {
        namespace: source.reference.namespace.clone(),
        name: source.reference.name.clone(),
        uid: source.uid.clone(),
        resource_version: source.resource_version.clone(),
        data: data.map(|(key, text)| (key.to_owned(), text.to_owned())).into(),
        binary_keys: [].into(),
        annotations: ConfigAnnotations { confirm_within: Some("10m".to_owned()), ..ConfigAnnotations::default() },
    }
}

/// Lets each operation of `act` fail in each way, and checks what is left once the fault has passed. `act` gives how many of
/// its writes were acknowledged, `check` is given that.
pub fn at_every_operation(
    prepared: impl Fn() -> SimDisk,
    act: impl Fn(&SimDisk) -> usize,
    check: impl Fn(&SimDisk, usize, &str),
) {
    let disk = prepared();
    let first = disk.operations();
    let acknowledged = act(&disk);
    check(&disk, acknowledged, "no fault");
    let operations = first..first + (disk.operations() - first);
    assert!(operations.end - operations.start > 5);
    let faults = [
        (Fault::PowerOff, true),
        (Fault::Full, true),
        (Fault::Full, false),
        (Fault::Io, true),
        (Fault::Io, false),
        (Fault::ReadOnly, false),
    ];
    for at in operations {
        for (fault, once) in faults {
            // The supervisor is killed, or the power is cut as well.
            for cut in [None, Some(1), Some(2), Some(3)] {
                let disk = prepared();
                disk.plan(Plan { fault, at, once });
                let acknowledged = act(&disk);
                match cut {
                    None => disk.write_back(),
                    Some(seed) => disk.crash(&mut Rng::new(at * 10 + seed)),
                }
                disk.heal();
                check(&disk, acknowledged, &format!("{fault:?} at {at}, once: {once}, power cut: {cut:?}"));
            }
        }
    }
}
