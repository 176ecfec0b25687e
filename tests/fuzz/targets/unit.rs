//! Units: what `enable` writes is a drop-in that it reads again as its own, with every word as it was.

use kubelet_supervisor::unit::{Plan, Properties, Request, UnitFile, plan, split_command};

/// A unit, a drop-in, systemd's properties, and options of `run`, one a line.
pub(crate) fn check(data: &[u8]) {
    let Some([unit, drop_in, properties, options]) = super::texts(data) else { return };
    let files = [
        ("/lib/systemd/system/kubelet.service", unit),
        ("/etc/systemd/system/kubelet.service.d/10-kubeadm.conf", drop_in),
    ];
    let mut files = files.map(|(path, text)| UnitFile { path: path.to_owned(), text: text.to_owned() }).to_vec();
    let properties = Properties::parse(properties);
    let words: Vec<String> = options.lines().map(str::to_owned).collect();
    if words.iter().any(|word| word == "--") {
        return; // `enable` refuses it: the kubelet's command would begin there
    }
    let run = |files: &[UnitFile], options: Option<&[String]>| -> Result<Plan, String> {
        plan(&Request {
            unit: "kubelet.service",
            files,
            properties: &properties,
            supervisor: "/usr/bin/kubelet-supervisor",
            options,
            service_type: None,
        })
    };
    let first = match run(&files, Some(&words).filter(|words| !words.is_empty()).map(Vec::as_slice)) {
        Ok(first) => first,
        // It quotes the unit, which is root's, as it is.
        Err(why) => return assert!(why.len() <= data.len() * 4 + 4096, "{why:?}"),
    };
    if !words.is_empty() {
        // What systemd makes of the quoted options is what was given: `%%` is `%`, `$$` is `$`.
        let plain = |word: &String| !word.contains(['%', '$', '\n', '\t']);
        if words.iter().all(plain) {
            assert_eq!(split_command(&first.options), words, "{:?}", first.options);
        }
    }
    assert!(!first.text.contains('\0') || unit.contains('\0') || drop_in.contains('\0') || options.contains('\0'));
    // A second `enable` finds nothing to change.
    files.push(UnitFile { path: first.path.clone(), text: first.text.clone() });
    let again = run(&files, None).unwrap_or_else(|why| panic!("{why}\n{}", first.text));
    assert_eq!((&again.text, &again.program), (&first.text, &first.program));
}
