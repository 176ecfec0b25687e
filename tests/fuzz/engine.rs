//! libFuzzer's side. One binary for all targets: `FUZZ_TARGET` names the one.
#![no_main]

use std::sync::OnceLock;

use fuzz::Target;

static TARGET: OnceLock<Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        TARGET.get_or_init(|| fuzz::target(&name).unwrap_or_else(|| panic!("FUZZ_TARGET={name}: no such target")));
    },
    |data: &[u8]| {
        if let Some(target) = TARGET.get() {
            target(data);
        }
    }
);
