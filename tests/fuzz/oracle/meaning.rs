//! What a configuration means with flags, in another spelling, and under a policy, against what the kubelet goes by.

use kubelet_config::effective::{self, Sources};
use kubelet_config::flags::{FlagOverrides, KubeletArgs};
use kubelet_config::hazard::table;
use kubelet_config::policy::{Candidate, NodePolicy};
use kubelet_config::types::Type;
use kubelet_supervisor::machine::model::Verdict;
use serde_json::Value;

use super::{Kubelet, MINOR, Tally, dump};

impl Kubelet<'_> {
    /// With flags: the effective view is the kubelet's, and what a policy pins and admits is so there.
    pub fn compare_flags(
        &self,
        text: &str,
        flags: &[String],
        pin: (&str, &str),
        tally: &mut Tally,
    ) -> Result<(), String> {
        let told = |why: String| format!("with {flags:?}: {why}");
        let Ok(ours) = self.render(Some(text), None) else { return Ok(()) };
        let native = self.load_with(&ours.value.to_string(), flags);
        let (Verdict::Valid(_), Some(running)) = (&native.verdict, &native.dump) else {
            *tally.entry("flags, refused").or_default() += 1;
            return Ok(());
        };
        *tally.entry("flags").or_default() += 1;
        let args = KubeletArgs::parse(flags);
        super::effective(&ours, &args, running).map_err(told)?;
        let goes_by = |value: &Value, args: &KubeletArgs| {
            effective::value(&effective::layers(&Sources::of(value, &[], args)), MINOR)
        };
        let (field, wanted) = pin;
        let policy = format!(
            "apiVersion: kubelet-supervisor.io/v1alpha1\nkind: NodePolicy\npinnedFields: {{{field}: {wanted}}}\n"
        );
        let policy = NodePolicy::parse(&policy).map_err(told)?;
        let (effective, overrides) = (goes_by(&ours.value, &args), FlagOverrides::default());
        let candidate = Candidate {
            namespace: None,
            effective: &effective,
            local: &effective,
            overrides: &overrides,
            minor: MINOR,
        };
        let is_admitted = policy.denials(&candidate).is_empty();
        let found = dump::leaves(running).get(&field.to_ascii_lowercase()).cloned().unwrap_or_default();
        let pinned = policy.pinned_fields.get(field).cloned().unwrap_or_default();
        let is_so = of(field).is_same(&found, &pinned);
        *tally.entry(if is_admitted { "pinned" } else { "not as pinned" }).or_default() += 1;
        if is_admitted == is_so {
            Ok(())
        } else {
            Err(told(format!("pinned to {wanted}, {field} is {found}; admitted: {is_admitted}")))
        }
    }

    /// In another spelling: what we call equal is equal to the kubelet.
    pub fn compare_spelling(&self, text: &str, tally: &mut Tally) -> Result<(), String> {
        let Ok(ours) = self.render(Some(text), None) else { return Ok(()) };
        let Value::Object(mut fields) = ours.value.clone() else { return Ok(()) };
        for (name, value) in &mut fields {
            *value = respelt(of(name), value);
        }
        let other = Value::Object(fields);
        if other == ours.value {
            return Ok(());
        }
        let other = other.to_string();
        *tally.entry("respelt").or_default() += 1;
        let again = self.render(Some(&other), None).map_err(|why| format!("respelt, {other} is refused: {why}"))?;
        // A relative path is a name of the payload in one, and a file of the node in the other.
        let has_paths = other.contains(&self.dir.display().to_string());
        if again.digest != ours.digest && !has_paths {
            return Err(format!("respelt, it has another digest: {other}"));
        }
        let (one, two) = (self.load(&ours.value.to_string()), self.load(&other));
        let is_same = match (&one.verdict, &two.verdict) {
            (Verdict::Valid(_), Verdict::Valid(_)) => true,
            (Verdict::Load(_), Verdict::Load(_)) | (Verdict::Validate(_), Verdict::Validate(_)) => return Ok(()),
            _ => false,
        };
        if !is_same {
            return Err(format!(
                "respelt, the kubelet finds it {:?}, and {:?} before: {other}",
                two.verdict, one.verdict
            ));
        }
        let (Some(one), Some(two)) = (&one.dump, &two.dump) else { return Ok(()) };
        let (one, two) = (dump::leaves(one), dump::leaves(two));
        let differ = |(path, value): (&String, &Value)| {
            let top = path.split('.').next().unwrap_or_default();
            let hazard = table::HAZARDS.iter().find(|hazard| hazard.field.eq_ignore_ascii_case(top));
            let entry = hazard.map_or(Type::Text, |hazard| if path == top { hazard.of } else { hazard.of.entry("") });
            let other = two.get(path).unwrap_or(&Value::Null);
            (!entry.is_same(value, other)).then(|| format!("{path}: {value} and {other}"))
        };
        let wrong: Vec<String> = one.iter().filter_map(differ).collect();
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(format!("respelt, the kubelet goes by something else: {wrong:?}: {other}"))
        }
    }
}

fn of(field: &str) -> Type {
    table::find(field).map_or(Type::Text, |hazard| hazard.of)
}

/// Another spelling of a value; the same, where there is none.
fn respelt(of: Type, value: &Value) -> Value {
    match (of, value) {
        (Type::Duration, Value::String(text)) => {
            kubelet_config::duration::nanos(text).map_or_else(|| value.clone(), |nanos| format!("{nanos}ns").into())
        }
        (Type::Quantity | Type::Threshold, Value::String(text)) => match text.strip_suffix("Mi").map(str::parse::<u32>)
        {
            Some(Ok(count)) => format!("{}Ki", u64::from(count) * 1024).into(),
            _ => value.clone(),
        },
        (Type::Set(item), Value::Array(items)) => items.iter().rev().map(|value| respelt(*item, value)).collect(),
        (Type::Map(_) | Type::Struct(_) | Type::Optional(_), Value::Object(fields)) => {
            fields.iter().map(|(name, value)| (name.clone(), respelt(of.entry(name), value))).collect()
        }
        _ => value.clone(),
    }
}
