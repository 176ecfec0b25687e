//! Configurations as people write them, and as they get them wrong.

/// What was wrong once, or is rare among random ones.
pub const REGRESSIONS: &[&str] = &[
    "",
    "maxPods: 60\n",
    "maxPods: 1\nmaxPods: 2\n",
    "maxpods: 60\n",
    "evictionHrad: {a: b}\n",
    "authentication: {anonymous: {enabledd: true}}\n",
    "---\nmaxPods: 60\n...\n",
    "maxPods: 60\n---\nmaxPods: 61\n",
    "maxPods: 60\n---\n",
    "\tmaxPods: 60\n",
    "maxPods:\t60\n",
    "maxPods: 60 # a comment\r\nclusterDomain: a\r\n",
    "staticPodPath: manifests\nresolvConf: ./resolv.conf\n",
    "staticPodPath: ../manifests\n",
    "evictionHard: &e {memory.available: 1Mi}\nevictionSoft: *e\n",
    "kubeReserved: &a {cpu: 1m}\nsystemReserved:\n  <<: *a\n  memory: 1Mi\n",
    "? maxPods\n: 60\n",
    "clusterDomain: !!str 5\n",
    "clusterDomain: !!binary aGVsbG8=\n",
    "clusterDomain: 2020-01-01\n",
    "clusterDomain: =\n",
    "clusterDomain: ~\n",
    "clusterDomain: \"\\u00e9\\x41\"\n",
    "clusterDomain: |\n  a\n  b\n",
    "clusterDomain: >-\n  a\n  b\n",
    "null: 1\n",
    "5: 1\n",
    "true: 1\n",
    "yes: 1\nno: 2\n",
    "clusterDomain: *nobody\n",
    "featureGates: {AllAlpha: yes}\n",
    "featureGates: {AllAlpha: 'true'}\n",
    "featureGates: {NoSuchGate: true}\n",
    "evictionHard: {memory.available: 5}\n",
    "clusterDNS: 10.0.0.1\n",
    "clusterDNS: [10.0.0.1, 5, ~]\n",
];

const INTEGERS: &[&str] = &[
    "5",
    "0",
    "-1",
    "+3",
    "007",
    "08",
    "0x10",
    "0o17",
    "0b101",
    "1_000",
    "1e2",
    "1.0",
    "1.5",
    "-0",
    "'5'",
    "~",
    "null",
    "",
    "2147483648",
    "99999999999",
    "9223372036854775807",
    "9223372036854775808",
    "123456789012345678901234567890",
    "1:30",
    ".5",
    ".inf",
    ".nan",
    "yes",
    "on",
    "!!int '7'",
    "!!float 5",
    "5 # five",
    "0x1G",
    "0.0",
    "-0x10",
    "0777",
];
/// Without `tRUE` and the like, which are texts to the kubelet: the parser takes a boolean in any case, and cannot be told otherwise.
const BOOLEANS: &[&str] = &[
    "true", "True", "TRUE", "yes", "Yes", "YES", "y", "Y", "on", "On", "n", "N", "no", "off", "OFF", "false", "'true'",
    "1", "0", "~", "",
];
const DURATIONS: &[&str] = &[
    "10s",
    "1m0s",
    "0s",
    "0",
    "10",
    "1h",
    "-5s",
    "'5'",
    "1.5h",
    "1us",
    "100ms",
    "1d",
    "~",
    "''",
    "1h1m1s",
    "+5s",
    "9999999h",
    "300000000000",
    "5µs",
    "1H",
    " 7s ",
    ".5s",
];
const TEXTS: &[&str] = &[
    "a.b",
    "''",
    "\"\"",
    "5",
    "1.0",
    "true",
    "yes",
    "~",
    "'it''s'",
    "\"\\t\\u00e9\"",
    "0x1G",
    "0777",
    "1e3",
    "1:30",
    "2020-01-01",
    "=",
    "<<",
    "a: b",
    "a #b",
    "|\n  x\n  y",
    ">\n  x\n  y",
    "é",
    "'#'",
    "-",
    "- a",
    "[a]",
    "{a: b}",
    "@a",
    "`a",
    "%a",
    "&x a",
    "*x",
    "!t a",
    "!!str 5",
    "a\\b",
    "\"\\/\"",
    "\"\\e\"",
    "/a/b",
    "./a",
    "a/../b",
    "a b  c",
    "1_000",
    "0o17",
    "+1",
    "Null",
    "NULL",
    ".5",
    "1.",
    "12e03",
    "-.inf",
    "0b1",
    "\"a\\\n  b\"",
];
const QUANTITIES: &[&str] =
    &["100Mi", "'1'", "1", "10%", "0.5", "1e3", "-1Gi", "1Ki5", "''", "~", "100m", "5G", "1_000"];

const FIELDS: &[(&str, &[&str])] = &[
    ("maxPods", INTEGERS),
    ("podsPerCore", INTEGERS),
    ("registryPullQPS", INTEGERS),
    ("registryBurst", INTEGERS),
    ("eventRecordQPS", INTEGERS),
    ("kubeAPIQPS", INTEGERS),
    ("kubeAPIBurst", INTEGERS),
    ("nodeStatusMaxImages", INTEGERS),
    ("imageGCHighThresholdPercent", INTEGERS),
    ("imageGCLowThresholdPercent", INTEGERS),
    ("oomScoreAdj", INTEGERS),
    ("maxOpenFiles", INTEGERS),
    ("podPidsLimit", INTEGERS),
    ("healthzPort", INTEGERS),
    ("readOnlyPort", INTEGERS),
    ("iptablesMasqueradeBit", INTEGERS),
    ("containerLogMaxFiles", INTEGERS),
    ("evictionMaxPodGracePeriod", INTEGERS),
    ("nodeLeaseDurationSeconds", INTEGERS),
    ("failSwapOn", BOOLEANS),
    ("cgroupsPerQOS", BOOLEANS),
    ("serializeImagePulls", BOOLEANS),
    ("cpuCFSQuota", BOOLEANS),
    ("protectKernelDefaults", BOOLEANS),
    ("makeIPTablesUtilChains", BOOLEANS),
    ("enableSystemLogHandler", BOOLEANS),
    ("enableServer", BOOLEANS),
    ("syncFrequency", DURATIONS),
    ("fileCheckFrequency", DURATIONS),
    ("nodeStatusUpdateFrequency", DURATIONS),
    ("streamingConnectionIdleTimeout", DURATIONS),
    ("volumeStatsAggPeriod", DURATIONS),
    ("cpuCFSQuotaPeriod", DURATIONS),
    ("clusterDomain", TEXTS),
    ("providerID", TEXTS),
    ("podCIDR", TEXTS),
    ("hairpinMode", &["promiscuous-bridge", "none", "hairpin-veth", "None", "~", "''", "no"]),
    ("cgroupDriver", &["cgroupfs", "systemd", "Systemd", "''"]),
    ("cpuManagerPolicy", &["none", "static", "None", "''"]),
    ("tlsMinVersion", &["VersionTLS12", "VersionTLS99", "''"]),
    ("staticPodPath", &["/m", "m", "./m", "a/../m", "''", "~", "../m", "5", "/a/../b", "m/"]),
    ("resolvConf", &["/etc/resolv.conf", "r", "''", "~"]),
    ("containerLogMaxSize", QUANTITIES),
];

const MAPS: &[(&str, &[&str], &[&str])] = &[
    (
        "evictionHard",
        &["memory.available", "nodefs.available", "imagefs.available", "nodefs.inodesFree", "nofield"],
        QUANTITIES,
    ),
    ("evictionMinimumReclaim", &["memory.available", "nodefs.available"], QUANTITIES),
    ("kubeReserved", &["cpu", "memory", "pid", "ephemeral-storage", "gpu"], QUANTITIES),
    ("systemReserved", &["cpu", "memory"], QUANTITIES),
    (
        "featureGates",
        &["AllAlpha", "CSIMigration", "DynamicKubeletConfig", "RotateKubeletServerCertificate", "NoSuch"],
        BOOLEANS,
    ),
];

const RAW: &[&str] = &[
    "clusterDNS: [10.96.0.10, 10.96.0.11]\n",
    "clusterDNS:\n- 10.96.0.10\n",
    "clusterDNS:\n  - 10.96.0.10\n  - \"a\"\n",
    "clusterDNS: {a: b}\n",
    "clusterDNS: []\n",
    "clusterDNS: ~\n",
    "enforceNodeAllocatable: [pods]\n",
    "enforceNodeAllocatable: []\n",
    "enforceNodeAllocatable: [none, pods]\n",
    "authentication: {anonymous: {enabled: false}, webhook: {enabled: true, cacheTTL: 1m}}\n",
    "authentication:\n  x509:\n    clientCAFile: ''\n",
    "authentication: ~\n",
    "authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 5m0s}}\n",
    "authorization: {mode: AlwaysAllow}\n",
    "authorization: {mode: RBAC}\n",
    "logging: {format: text}\n",
    "logging: {format: nothing}\n",
    "staticPodURLHeader: {A: [b, c]}\n",
    "allowedUnsafeSysctls: ['kernel.msg*']\n",
    "tlsCipherSuites: [TLS_RSA_WITH_AES_128_CBC_SHA]\n",
    "registerWithTaints: []\n",
    "metadata: {name: a}\n",
    "standIn: {deep: [[[[[[[[[[[[[[[[[[[[a]]]]]]]]]]]]]]]]]]]]}\n",
    "nodeStatusReportFrequency: 5m\n",
    "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n",
    "reservedSystemCPUs: 0-1\n",
    "? maxPods\n: 5\n",
    "x: &x {a: 1}\ny: *x\n",
    "z: &z [1, 2]\n",
    "# only a comment\n",
    "\n",
];

const HEAD: [&str; 2] = ["kind: KubeletConfiguration\n", "apiVersion: kubelet.config.k8s.io/v1beta1\n"];

/// A text with its kind and version.
pub fn with_head(text: &str) -> String {
    match text.strip_prefix("---\n") {
        Some(text) => format!("---\n{}{text}", HEAD.concat()),
        None => format!("{}{text}", HEAD.concat()),
    }
}

/// A source of texts; a seed and a number make one.
pub struct Generator {
    state: u64,
}

impl Generator {
    pub fn new(seed: u64, number: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(number) }
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }

    fn one_in(&mut self, chance: usize) -> bool {
        self.below(chance) == 0
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// A whole document.
    pub fn text(&mut self) -> String {
        let mut blocks: Vec<String> = HEAD.map(str::to_owned).to_vec();
        if self.one_in(40) {
            blocks.remove(self.below(2));
        }
        for _ in 0..=self.below(4) {
            let block = self.block();
            if self.one_in(15) {
                blocks.push(block.clone()); // twice
            }
            blocks.push(block);
        }
        if self.one_in(4) {
            let at = self.below(blocks.len());
            blocks.rotate_left(at);
        }
        let text = blocks.concat();
        match self.below(40) {
            0 => format!("\u{feff}{text}"),
            1 => text.replace('\n', "\r\n"),
            2 => format!("---\n{text}"),
            3 => format!("%YAML 1.1\n---\n{text}"),
            4 => format!("{text}...\n"),
            5 => format!("{text}---\nmaxPods: 1\n"),
            6 => format!("---\n---\n{text}"),
            7 => format!("{text}\u{0}"),
            8 => format!("# a comment\n\n{text}\n\n"),
            9 => text.replace(": ", ":  "),
            10 => text.replace("  ", "\t"),
            11 => text.trim_end().to_owned(),
            12 => format!(" {}", text.replace('\n', "\n ").trim_end()),
            13 => format!("{text}]\n"),
            14 => serde_yaml::from_str::<serde_json::Value>(&text).map_or(text, |value| value.to_string()),
            _ => text,
        }
    }

    /// Some lines of it.
    fn block(&mut self) -> String {
        match self.below(10) {
            0..=5 => {
                let (field, values) = *self.pick(FIELDS);
                // Most of the time no more than one thing of a text should be wrong.
                let value = if self.one_in(3) { *self.pick(values) } else { values[0] };
                let field = self.name(field);
                format!("{field}: {value}\n")
            }
            6 | 7 => {
                let (field, names, values) = *self.pick(MAPS);
                let entries: Vec<(String, &str)> = (0..self.below(4))
                    .map(|_| {
                        let (name, value) = (*self.pick(names), *self.pick(values));
                        (self.name(name), value)
                    })
                    .collect();
                let field = self.name(field);
                if self.one_in(2) {
                    let entries: Vec<String> = entries.iter().map(|(name, value)| format!("{name}: {value}")).collect();
                    return format!("{field}: {{{}}}\n", entries.join(", "));
                }
                let entries: Vec<String> = entries.iter().map(|(name, value)| format!("  {name}: {value}\n")).collect();
                format!("{field}:\n{}", entries.concat())
            }
            _ => (*self.pick(RAW)).to_owned(),
        }
    }

    /// A name, rarely as people misspell it.
    fn name(&mut self, name: &str) -> String {
        match self.below(30) {
            0 => name.to_lowercase(),
            1 => name[..1].to_uppercase() + &name[1..],
            2 => format!("{name}s"),
            3 => format!("\"{name}\""),
            4 => format!("{name} "),
            _ => name.to_owned(),
        }
    }
}
