//! What a field's value is to the kubelet, so that two spellings of one value are equal, and nothing else is.
//!
//! | type | equal | source (v1.20.2 and v1.36) |
//! |---|---|---|
//! | `Bool`, `Int`, `Float`, `Text` | as they are | |
//! | `Flag` | `"1"` and `"true"` | strconv.ParseBool, pkg/kubelet/cm/cpumanager/policy_options.go |
//! | `Duration` | `60s`, `1m`, and nanoseconds as a number | time.ParseDuration |
//! | `Quantity` | `1Gi` and `1024Mi` | ParseQuantity, apimachinery/pkg/api/resource |
//! | `Share` | a quantity, or `10%` and `10.0%`; zero is none | parsePercentage, pkg/kubelet/eviction/helpers.go |
//! | `Threshold` | the same; `0%` and `100%` are none, zero is refused | parseThresholdStatement, the same file |
//! | `Percent` | `10%` and `10`; zero is not none | ParseQOSReserved, pkg/kubelet/cm/qos_container_manager_linux.go |
//! | `Cpus` | `0-2` and `0,1,2` | cpuset.Parse |
//! | `TlsVersion` | as it is; `VersionTLS12` is none | TLSVersion, component-base/cli/flag/ciphersuites_flag.go |
//! | `Cgroup` | `/a` and `a` | ParseCgroupfsToCgroupName, pkg/kubelet/cm/cgroup_manager_linux.go |
//! | `Endpoint` | `/run/x.sock` and `unix:///run/x.sock` | GetAddressAndDialer, pkg/kubelet/util/util_unix.go |
//! | `List` | in this order alone | |
//! | `Set` | in any order, an item once or more | |
//! | `Set` of structs with a map | the same; the maps of items that are alike else are one | validateReservedMemoryConfiguration, apis/config/validation |
//! | `Map`, `Struct` | entry by entry; one that is empty or zero is none | `omitempty` |
//! | `Optional` | a struct that is there but empty is not one that is absent | a pointer in Go that is asked for nil |

use serde_json::{Map, Number, Value};

use crate::duration;
use crate::hazard::{cpus, quantity};
use crate::merge::merge;
use crate::strconv::boolean;

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// True or false.
    Bool,
    /// A text that stands for true or false.
    Flag,
    /// A whole number.
    Int,
    /// A number.
    Float,
    /// A text that means itself.
    Text,
    /// A length of time.
    Duration,
    /// An amount.
    Quantity,
    /// An amount, or a share of what there is.
    Share,
    /// The same, as an eviction threshold.
    Threshold,
    /// A share in whole percent.
    Percent,
    /// CPUs by their numbers.
    Cpus,
    /// A version of TLS.
    TlsVersion,
    /// A cgroup by its path.
    Cgroup,
    /// A socket of the container runtime.
    Endpoint,
    /// Items whose order counts.
    List(&'static Type),
    /// Items whose order does not count.
    Set(&'static Type),
    /// Entries under any name.
    Map(&'static Type),
    /// Entries under these names.
    Struct(&'static [Member]),
    /// The same, where an empty one is not none.
    Optional(&'static [Member]),
}

/// What becomes of entries that are zero.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Zero {
    IsNone,
    IsKept,
}

/// A field of a struct.
pub type Member = (&'static str, Type);

use Type::{Bool, Duration, Flag, Int, List, Optional, Quantity, Set, Share, Struct, Text, Threshold};

static BOOL: Type = Bool;
static DURATION: Type = Duration;
static FLAG: Type = Flag;
static PERCENT: Type = Type::Percent;
static QUANTITY: Type = Quantity;
static SHARE: Type = Share;
static TEXT: Type = Text;
static THRESHOLD: Type = Threshold;

/// Texts in the order in which the kubelet goes through them: nameservers are asked in it
/// (pkg/kubelet/network/dns/dns.go).
pub(crate) const TEXTS: Type = List(&TEXT);
/// Texts that the kubelet makes a set of, or a whitelist.
pub(crate) const TEXT_SET: Type = Set(&TEXT);
/// Feature gates by name.
pub(crate) const GATES: Type = Type::Map(&BOOL);
/// Options of a policy, texts that stand for booleans.
pub(crate) const OPTIONS: Type = Type::Map(&FLAG);
/// Shares in percent by resource.
pub(crate) const PERCENTS: Type = Type::Map(&PERCENT);
/// Amounts by resource.
pub(crate) const QUANTITIES: Type = Type::Map(&QUANTITY);
/// Amounts or shares by resource or signal.
pub(crate) const SHARES: Type = Type::Map(&SHARE);
/// Eviction thresholds by signal.
pub(crate) const THRESHOLDS: Type = Type::Map(&THRESHOLD);
/// Lengths of time by signal.
pub(crate) const DURATIONS: Type = Type::Map(&DURATION);
/// Headers of a request: the values of one are sent in their order.
pub(crate) const HEADERS: Type = Type::Map(&TEXTS_OF_HEADER);
static TEXTS_OF_HEADER: Type = TEXTS;

/// `authentication`.
pub(crate) const AUTHENTICATION: Type = Struct(&[
    ("x509", Struct(&[("clientCAFile", Text)])),
    ("webhook", Struct(&[("enabled", Bool), ("cacheTTL", Duration)])),
    ("anonymous", Struct(&[("enabled", Bool)])),
]);
/// `authorization`.
pub(crate) const AUTHORIZATION: Type = Struct(&[
    ("mode", Text),
    ("webhook", Struct(&[("cacheAuthorizedTTL", Duration), ("cacheUnauthorizedTTL", Duration)])),
]);
/// `crashLoopBackOff`.
pub(crate) const CRASH_LOOP_BACK_OFF: Type = Struct(&[("maxContainerRestartPeriod", Duration)]);
/// `logging`. Of `vmodule` the first pattern that matches a file counts (klog's `setV`, k8s.io/klog/v2/klog.go).
pub(crate) const LOGGING: Type = Struct(&[
    ("format", Text),
    ("flushFrequency", Duration),
    ("verbosity", Int),
    ("vmodule", List(&VMODULE)),
    ("sanitization", Bool),
    ("options", Struct(&[("json", STREAM), ("text", STREAM)])),
]);
static VMODULE: Type = Struct(&[("filePattern", Text), ("verbosity", Int)]);
const STREAM: Type = Struct(&[("splitStream", Bool), ("infoBufferSize", Quantity)]);
/// `memorySwap`.
pub(crate) const MEMORY_SWAP: Type = Struct(&[("swapBehavior", Text)]);
/// `registerWithTaints`: those of a Node are a set by key and effect (pkg/util/taints).
pub(crate) const TAINTS: Type = Set(&TAINT);
static TAINT: Type = Struct(&[("key", Text), ("value", Text), ("effect", Text), ("timeAdded", Text)]);
/// `reservedMemory`, by NUMA node (pkg/kubelet/cm/memorymanager/memory_manager.go).
pub(crate) const RESERVED_MEMORY: Type = Set(&RESERVATION);
static RESERVATION: Type = Struct(&[("numaNode", Int), ("limits", QUANTITIES)]);
/// `shutdownGracePeriodByPodPriority`, which the kubelet sorts (pkg/kubelet/nodeshutdown).
pub(crate) const GRACE_PERIODS: Type = Set(&GRACE_PERIOD);
static GRACE_PERIOD: Type = Struct(&[("priority", Int), ("shutdownGracePeriodSeconds", Int)]);
/// `tracing`: a kubelet with an empty one traces what it is asked to (newTracerProvider, cmd/kubelet/app/server.go, v1.36).
pub(crate) const TRACING: Type = Optional(&[("endpoint", Text), ("samplingRatePerMillion", Int)]);
/// `userNamespaces`.
pub(crate) const USER_NAMESPACES: Type = Struct(&[("idsPerPod", Int)]);

impl Type {
    /// The fields of a struct, or of the structs in a list; `None`: any name will do.
    #[must_use]
    pub fn members(self) -> Option<&'static [Member]> {
        match self {
            Self::Struct(members) | Self::Optional(members) => Some(members),
            Self::List(item) | Self::Set(item) => item.members(),
            _ => None,
        }
    }

    /// What an entry of this name is; what is not known is taken as it is written.
    #[must_use]
    pub fn entry(self, name: &str) -> Self {
        self.below(name).unwrap_or(Self::Text)
    }

    /// What stands below a value of this type, by the name of an entry or the number of an item; `None`: that is not known.
    #[must_use]
    pub fn below(self, step: &str) -> Option<Self> {
        match self {
            Self::List(item) | Self::Set(item) => Some(*item),
            Self::Map(value) => Some(*value),
            Self::Struct(members) | Self::Optional(members) => {
                members.iter().find(|(member, _)| *member == step).map(|(_, of)| *of)
            }
            _ => None,
        }
    }

    /// True for two values that are one to the kubelet.
    #[must_use]
    pub fn is_same(self, one: &Value, other: &Value) -> bool {
        one == other || self.canonical(one) == self.canonical(other)
    }

    /// Go's zero value: what `omitempty` leaves out.
    #[must_use]
    pub fn is_zero(self, value: &Value) -> bool {
        match self.canonical(value) {
            Value::Null => true,
            Value::Bool(value) => !value,
            Value::Number(number) => number.as_f64() == Some(0.0),
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty() && !matches!(self, Self::Optional(_)),
        }
    }

    /// The one spelling of a value that a kubelet goes by. What is not of this type stays as it is: the kubelet refuses it.
    #[must_use]
    pub fn canonical(self, value: &Value) -> Value {
        self.read(value, Zero::IsNone).unwrap_or_else(|| value.clone())
    }

    /// The one spelling of a value in a file. Zero may be something else than none there (a pointer in Go), and a number is no
    /// spelling of a text: where the field takes texts, the kubelet refuses the number.
    #[must_use]
    pub fn spelt_once(self, value: &Value) -> Value {
        match (value, self.read(value, Zero::IsKept)) {
            (Value::Number(_), _) | (_, None) => value.clone(),
            // No value of a file begins so.
            (Value::String(_), Some(read)) => format!("={read}").into(),
            (_, Some(read)) => read,
        }
    }

    fn read(self, value: &Value, zero: Zero) -> Option<Value> {
        let spelt = |of: &Self, value: &Value| match zero {
            Zero::IsNone => of.canonical(value),
            Zero::IsKept => of.spelt_once(value),
        };
        match (self, value) {
            (Self::Int | Self::Float, Value::Number(number)) => whole(number),
            (Self::Flag, Value::String(text)) => boolean(text).map(Value::from),
            (Self::Duration, Value::String(text)) => duration::nanos(text).map(Value::from),
            (Self::Quantity, Value::Number(number)) => amount(&number.to_string()),
            (Self::Quantity, Value::String(text)) => amount(text),
            (Self::Share | Self::Threshold, Value::String(text)) => {
                let Some(percent) = text.strip_suffix('%') else { return amount(text) };
                let percent: f32 = percent.trim_end_matches('%').parse().ok()?;
                // "100%" is no threshold, and "100.0%" one that is always crossed.
                let is_off = percent == 0.0 || self == Self::Threshold && text == "100%";
                match zero {
                    Zero::IsKept if is_off => None,
                    _ => Some(if is_off { Value::Null } else { format!("{percent}%").into() }),
                }
            }
            (Self::Percent, Value::String(text)) => text.trim_end_matches('%').parse::<i64>().ok().map(Value::from),
            (Self::Cpus, Value::String(text)) => Some(cpus(text)?.into_iter().collect()),
            (Self::TlsVersion, Value::String(text)) => {
                (zero == Zero::IsNone && matches!(text.as_str(), "" | "VersionTLS12")).then_some(Value::Null)
            }
            (Self::Cgroup, Value::String(text)) if !text.is_empty() && !text.starts_with('/') => {
                Some(format!("/{text}").into())
            }
            (Self::Endpoint, Value::String(text)) => Some(endpoint(text).into()),
            (Self::List(item), Value::Array(items)) => Some(items.iter().map(|value| spelt(item, value)).collect()),
            (Self::Set(item), Value::Array(items)) => {
                Some(set(joined(*item, items.iter().map(|value| spelt(item, value)))))
            }
            (Self::Map(_) | Self::Struct(_) | Self::Optional(_), Value::Object(fields)) => {
                Some(self.entries(fields, zero))
            }
            _ => None,
        }
    }

    fn entries(self, fields: &Map<String, Value>, zero: Zero) -> Value {
        let is_struct = !matches!(self, Self::Map(_));
        if zero == Zero::IsKept {
            let all = fields.iter().map(|(name, value)| (name.clone(), self.entry(name).spelt_once(value)));
            return Value::Object(all.collect());
        }
        let kept = fields.iter().filter_map(|(name, value)| {
            let of = self.entry(name);
            let value = of.canonical(value);
            let is_none = value.is_null() || (is_struct || matches!(of, Flag | Share)) && of.is_zero(&value);
            (!is_none).then(|| (name.clone(), value))
        });
        Value::Object(kept.collect())
    }
}

/// `5.0` of YAML is 5.
fn whole(number: &Number) -> Option<Value> {
    let float = number.as_f64().filter(|_| number.is_f64())?;
    #[allow(clippy::cast_possible_truncation)] // below 2^53
    (float.fract() == 0.0 && float.abs() < 9.0e15).then(|| Value::from(float as i64))
}

/// In billionths, of which a quantity has whole ones. As a text: 128 bits are more than a number of JSON has.
fn amount(text: &str) -> Option<Value> {
    let nanos = quantity::nanos(text)?;
    Some(if nanos == 0 { 0.into() } else { format!("{nanos}n").into() })
}

/// Of a URL the path, whatever the host; what has no scheme is a path.
fn endpoint(text: &str) -> String {
    let url = text.split_once(':').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("unix"));
    let path = match url.and_then(|(_, rest)| rest.strip_prefix("//")) {
        Some(behind) => behind.find('/').and_then(|at| behind.get(at..)).unwrap_or_default(),
        None => url.map_or(text, |(_, rest)| rest),
    };
    let is_plain = path.starts_with('/') && !path.starts_with("//") && !path.contains(['?', '#', '%']);
    if is_plain { format!("unix://{path}") } else { text.to_owned() }
}

/// Structs that differ in their maps alone as one of them: a NUMA node may have an item for each of its resources. The kubelet
/// refuses an entry that stands twice: such items stay apart.
fn joined(of: Type, items: impl Iterator<Item = Value>) -> Vec<Value> {
    let maps = of.members().unwrap_or_default().iter().filter(|(_, of)| matches!(of, Type::Map(_)));
    let maps: Vec<&str> = maps.map(|(name, _)| *name).collect();
    let is_alike = |one: &Value, other: &Value| {
        let (Value::Object(one), Value::Object(other)) = (one, other) else { return false };
        one.iter().chain(other).all(|(name, _)| match (one.get(name), other.get(name)) {
            (Some(Value::Object(one)), Some(Value::Object(other))) if maps.contains(&name.as_str()) => {
                !one.keys().any(|entry| other.contains_key(entry))
            }
            (one, other) => one == other,
        })
    };
    let mut found: Vec<Value> = Vec::new();
    for item in items {
        match found.iter_mut().find(|known| !maps.is_empty() && is_alike(known, &item)) {
            Some(known) => merge(known, &item),
            None => found.push(item),
        }
    }
    found
}

fn set(mut items: Vec<Value>) -> Value {
    items.sort_by_key(Value::to_string);
    items.dedup();
    Value::Array(items)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::hazard::table::HAZARDS;

    /// For each type: spellings of one value, and values that differ from it.
    fn examples(of: Type) -> (Vec<Value>, Vec<Value>) {
        match of {
            Bool => (vec![json!(true)], vec![json!(false)]),
            Flag => (vec![json!("true"), json!("1"), json!("T")], vec![json!("false"), json!("0")]),
            Int => (vec![json!(5), json!(5.0)], vec![json!(6), json!("5"), json!(-5)]),
            Type::Float => (vec![json!(0.5)], vec![json!(0.6)]),
            Text => (vec![json!("60s")], vec![json!("1m"), json!("1m0s")]),
            Duration => (
                vec![json!("60s"), json!("1m"), json!("1m0s"), json!(60_000_000_000_i64), json!("0h0.5m30s")],
                vec![json!("61s"), json!("-60s"), json!("0s")],
            ),
            Quantity => (
                vec![json!("1Gi"), json!("1024Mi"), json!("1073741824"), json!(1_073_741_824), json!("1.0Gi")],
                vec![json!("1G"), json!("0"), json!("1Ti"), json!("-1Gi")],
            ),
            Share => (vec![json!("10%"), json!("10.0%")], vec![json!("11%"), json!("10")]),
            Type::Percent => {
                (vec![json!("10%"), json!("10"), json!("+10%%")], vec![json!("11%"), json!("0%"), json!("10.0%")])
            }
            Threshold => (vec![json!("1Gi"), json!("1024Mi")], vec![json!("1%"), json!("0%")]),
            Type::Cpus => (vec![json!("0-2"), json!("0,1,2"), json!("2,0-1")], vec![json!("0-3"), json!("")]),
            Type::TlsVersion => (vec![json!("VersionTLS12"), json!("")], vec![json!("VersionTLS13")]),
            Type::Cgroup => (vec![json!("/a"), json!("a")], vec![json!("/b"), json!("a/b"), json!("")]),
            Type::Endpoint => (
                vec![
                    json!("/run/x.sock"),
                    json!("unix:///run/x.sock"),
                    json!("unix:/run/x.sock"),
                    json!("UNIX:///run/x.sock"),
                    json!("unix://localhost/run/x.sock"),
                ],
                vec![
                    json!("unix:///run/y.sock"),
                    json!("tcp://run/x.sock"),
                    json!("unix://run/x.sock"),
                    json!("//run/x.sock"),
                ],
            ),
            List(item) | Set(item) => {
                let (same, other) = examples(*item);
                let (one, two) = (same[0].clone(), other[0].clone());
                let mut equal: Vec<Value> = same.iter().map(|it| json!([it, two])).collect();
                let mut differ = vec![json!([one]), json!([one, two, "x"])];
                if matches!(of, Set(_)) {
                    equal.push(json!([two, one, one]));
                } else {
                    differ.extend([json!([two, one]), json!([one, two, two])]);
                }
                (equal, differ)
            }
            Type::Map(value) => {
                let (same, other) = examples(*value);
                let mut equal: Vec<Value> = same.iter().map(|it| json!({"a": it})).collect();
                equal.push(json!({"a": same[0], "b": null}));
                (equal, vec![json!({"a": other[0]}), json!({"b": same[0]}), json!({})])
            }
            Struct(members) | Optional(members) => {
                let (mut equal, mut differ) = (vec![json!({})], vec![]);
                for (name, of) in members {
                    let (same, other) = examples(*of);
                    let all = |value: &Value, equal: &[Value]| {
                        let mut all = equal[0].clone();
                        all[*name] = value.clone();
                        all
                    };
                    differ.extend(other.iter().filter(|it| !of.is_zero(it)).map(|it| all(it, &equal)));
                    let spelt: Vec<Value> = same.iter().map(|it| all(it, &equal)).collect();
                    differ.push(equal[0].clone());
                    differ.retain(|it| !spelt.contains(it));
                    equal = spelt;
                }
                (equal, differ)
            }
        }
    }

    /// Each field of 1.20 to 1.37 is compared by its type, whatever is within it.
    #[test]
    fn each_field_is_compared_by_its_type() {
        for hazard in HAZARDS {
            let (same, other) = examples(hazard.of);
            for one in &same {
                for two in &same {
                    assert!(hazard.of.is_same(one, two), "{}: {one} and {two}", hazard.field);
                }
                for two in &other {
                    assert!(!hazard.of.is_same(one, two), "{}: {one} and {two}", hazard.field);
                }
            }
        }
    }

    /// What a struct leaves out with `omitempty` is what is zero; a text is zero if it is empty, whatever it could be read as.
    #[test]
    fn zero_is_a_matter_of_the_type() {
        for (of, value, zero) in [
            (Text, json!("0"), false),
            (Text, json!("0s"), false),
            (Text, json!(""), true),
            (Duration, json!("0s"), true),
            (Duration, json!("0"), true),
            (Duration, json!(0), true),
            (Quantity, json!("0Gi"), true),
            (Int, json!(0.0), true),
            (Bool, json!(false), true),
            (TAINT, json!({"value": ""}), true),
            (TEXT_SET, json!([]), true),
            (OPTIONS, json!({"full-pcpus-only": "false"}), true),
            (TRACING, json!({}), false),
            (MEMORY_SWAP, json!({"swapBehavior": ""}), true),
        ] {
            assert_eq!(of.is_zero(&value), zero, "{of:?} {value}");
        }
        assert!(TAINT.is_same(&json!({"key": "a", "effect": "b"}), &json!({"key": "a", "value": "", "effect": "b"})));
        assert!(!TRACING.is_same(&json!({}), &Value::Null));
    }

    #[test]
    fn in_a_file_zero_is_kept() {
        let webhook = json!({"webhook": {"enabled": false, "cacheTTL": "60s"}});
        let same = json!({"webhook": {"enabled": false, "cacheTTL": "1m"}});
        let (number, without) = (
            json!({"webhook": {"enabled": false, "cacheTTL": 60_000_000_000_i64}}),
            json!({"webhook": {"cacheTTL": "1m"}}),
        );
        assert_eq!(AUTHENTICATION.spelt_once(&webhook), AUTHENTICATION.spelt_once(&same));
        assert_ne!(AUTHENTICATION.spelt_once(&webhook), AUTHENTICATION.spelt_once(&without), "absent is true");
        assert_ne!(AUTHENTICATION.spelt_once(&webhook), AUTHENTICATION.spelt_once(&number), "the kubelet refuses it");
        assert_ne!(
            THRESHOLDS.spelt_once(&json!({"a": "0%"})),
            THRESHOLDS.spelt_once(&json!({})),
            "absent may be a default"
        );
        assert_eq!(TEXT_SET.spelt_once(&json!(["b", "a"])), TEXT_SET.spelt_once(&json!(["a", "b"])));
        assert_ne!(QUANTITIES.spelt_once(&json!({"cpu": 1})), QUANTITIES.spelt_once(&json!({"cpu": "1"})));
        assert_eq!(QUANTITIES.spelt_once(&json!({"cpu": "1000m"})), QUANTITIES.spelt_once(&json!({"cpu": "1"})));
    }

    #[test]
    fn what_is_of_no_type_is_itself() {
        for of in HAZARDS.iter().map(|hazard| hazard.of) {
            for value in [json!("10 Gi"), json!("x"), json!({"\u{e9}": [1]}), json!([[]]), json!(-1.5), Value::Null] {
                assert!(of.is_same(&value, &value) && !of.is_same(&value, &json!("another")), "{of:?} {value}");
            }
        }
    }
}
