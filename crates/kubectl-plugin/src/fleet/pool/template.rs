//! A KubeletConfiguration with expressions in it.

use serde_json::Value;

use super::expressions::{Expression, Inputs, Uses};
use super::types::MergeMode;
use kubelet_config::bounds::shortened;
use kubelet_config::hazard::table;
use kubelet_config::types::Type;

/// A message names an expression, and carries no more than so many characters of a long one.
const MESSAGE: usize = 120;

/// Of one configuration.
const MAX_EXPRESSIONS: usize = 64;
/// A kubelet that is told nothing of it.
const DEFAULT_MAX_PODS: u64 = 110;
/// What `node.pods` is made of: these come first, and cannot ask for it.
const BEFORE_PODS: [&str; 2] = ["/maxPods", "/podsPerCore"];

/// A string with expressions.
#[derive(Debug)]
struct Field {
    /// As in RFC 6901.
    pointer: String,
    /// For people.
    path: String,
    parts: Vec<Part>,
}

#[derive(Debug)]
enum Part {
    Text(String),
    Expression(Expression),
}

/// A configuration, and what of it is to be evaluated.
#[derive(Debug)]
pub(super) struct Template {
    document: Value,
    fields: Vec<Field>,
    merge: MergeMode,
    pub(super) uses: Uses,
}

/// There is something to evaluate, or to take for it.
pub(super) fn has_expressions(document: &Value) -> bool {
    match document {
        Value::String(text) => text.contains("${"),
        Value::Array(items) => items.iter().any(has_expressions),
        Value::Object(fields) => fields.iter().any(|(key, value)| key.contains("${") || has_expressions(value)),
        _ => false,
    }
}

impl Template {
    /// # Errors
    /// Field, expression, and what is wrong with it.
    pub(super) fn parse(document: Value, merge: MergeMode) -> Result<Self, String> {
        let (mut fields, mut uses) = (Vec::new(), Uses::default());
        collect(&document, String::new(), String::new(), &mut fields, &mut uses)?;
        let count = fields.iter().flat_map(|field: &Field| &field.parts);
        let count = count.filter(|part| matches!(part, Part::Expression(_))).count();
        if count > MAX_EXPRESSIONS {
            return Err(format!(
                "spec.kubeletConfiguration: {count} expressions, at most {MAX_EXPRESSIONS} are allowed"
            ));
        }
        fields.sort_by_key(|field| !BEFORE_PODS.contains(&field.pointer.as_str()));
        if uses.variables.contains("pods") {
            uses.variables.insert("cpu".to_owned());
        }
        Ok(Self { document, fields, merge, uses })
    }

    /// The configuration of a Node that reports these.
    ///
    /// # Errors
    /// Field, expression, and what is wrong with it.
    pub(super) fn evaluate(&self, inputs: &Inputs) -> Result<Value, String> {
        let mut document = self.document.clone();
        let (first, others) =
            self.fields.split_at(self.fields.partition_point(|field| BEFORE_PODS.contains(&field.pointer.as_str())));
        let mut inputs = inputs.clone();
        let reported = inputs.pods.take();
        evaluate_fields(first, &inputs, &mut document)?;
        inputs.pods = self.pods(&document, &inputs, reported);
        evaluate_fields(others, &inputs, &mut document)?;
        Ok(document)
    }

    /// The pods that a Node has room for with this configuration, as its kubelet will report them.
    fn pods(&self, document: &Value, inputs: &Inputs, reported: Option<u64>) -> Option<u64> {
        let number = |field: &str| document.get(field).and_then(Value::as_u64).filter(|number| *number > 0);
        let most = match number("maxPods") {
            Some(pods) => Some(pods),
            None if self.merge == MergeMode::Overlay => reported,
            None => Some(DEFAULT_MAX_PODS),
        };
        match (number("podsPerCore"), inputs.cpu) {
            (Some(each), Some(cores)) => Some(most?.min(each.saturating_mul(cores))),
            (Some(_), None) => None,
            (None, _) => most,
        }
    }

    /// `node.pods` is what the Node reports: the configuration says nothing of it.
    pub(super) fn asks_for_reported_pods(&self) -> bool {
        self.merge == MergeMode::Overlay
            && self.uses.variables.contains("pods")
            && self.document.get("maxPods").is_none()
    }
}

fn evaluate_fields(fields: &[Field], inputs: &Inputs, document: &mut Value) -> Result<(), String> {
    for field in fields {
        let value = field.evaluate(inputs)?;
        if let Some(place) = document.pointer_mut(&field.pointer) {
            *place = value;
        }
    }
    Ok(())
}

fn collect(
    value: &Value,
    pointer: String,
    path: String,
    fields: &mut Vec<Field>,
    uses: &mut Uses,
) -> Result<(), String> {
    match value {
        Value::String(text) if text.contains("${") => {
            let mut own = Uses::default();
            let parts = parse_parts(text, &mut own).map_err(|why| format!("{}: {why}", title(&path)))?;
            if BEFORE_PODS.contains(&pointer.as_str()) && own.variables.contains("pods") {
                return Err(format!(
                    "{}: {text}: node.pods is not known here, for it is made of this field",
                    title(&path)
                ));
            }
            uses.variables.append(&mut own.variables);
            uses.labels.append(&mut own.labels);
            fields.push(Field { pointer, path, parts });
            Ok(())
        }
        Value::Array(items) => items.iter().enumerate().try_for_each(|(index, item)| {
            collect(item, format!("{pointer}/{index}"), format!("{path}[{index}]"), fields, uses)
        }),
        Value::Object(entries) => entries.iter().try_for_each(|(key, item)| {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            if key.contains("${") {
                return Err(format!("{}: names of fields are not evaluated", title(&path)));
            }
            let key = key.replace('~', "~0").replace('/', "~1");
            collect(item, format!("{pointer}/{key}"), path, fields, uses)
        }),
        _ => Ok(()),
    }
}

fn title(path: &str) -> String {
    format!("spec.kubeletConfiguration.{path}")
}

/// Text, and `${…}` in it; `$${` is the text `${`.
fn parse_parts(text: &str, uses: &mut Uses) -> Result<Vec<Part>, String> {
    let (mut parts, mut literal, mut rest) = (Vec::new(), String::new(), text);
    while let Some((before, behind)) = rest.split_once("${") {
        if let Some(before) = before.strip_suffix('$') {
            literal.push_str(before);
            literal.push_str("${");
            rest = behind;
            continue;
        }
        literal.push_str(before);
        let (source, behind) = split_expression(behind)
            .ok_or_else(|| format!("{text}: ${{ has no closing brace (a literal ${{ is written $${{)"))?;
        if !literal.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut literal)));
        }
        let expression =
            Expression::parse(source, uses).map_err(|why| format!("${{{}}}: {why}", shortened(source, MESSAGE, 0)))?;
        parts.push(Part::Expression(expression));
        rest = behind;
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        parts.push(Part::Text(literal));
    }
    Ok(parts)
}

/// Up to the brace that closes it, which is in no string and closes no map; and what is behind it.
fn split_expression(text: &str) -> Option<(&str, &str)> {
    let (mut depth, mut quote, mut escaped) = (0_usize, None, false);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '{') => depth += 1,
            (None, '}') if depth > 0 => depth -= 1,
            (None, '}') => return Some((text.get(..at)?, text.get(at + 1..)?)),
            (None, _) => {}
        }
    }
    None
}

impl Field {
    fn evaluate(&self, inputs: &Inputs) -> Result<Value, String> {
        let of = |expression: &Expression, why: &str| {
            format!("{}: ${{{}}}: {why}", title(&self.path), shortened(&expression.source, MESSAGE, 0))
        };
        if let [Part::Expression(expression)] = self.parts.as_slice() {
            let value = expression.evaluate(inputs).map_err(|why| of(expression, &why))?;
            check_type(&self.pointer, &value).map_err(|why| of(expression, &why))?;
            return Ok(value);
        }
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(part) => text.push_str(part),
                Part::Expression(expression) => {
                    match expression.evaluate(inputs).map_err(|why| of(expression, &why))? {
                        Value::String(part) => text.push_str(&part),
                        Value::Number(number) if number.is_i64() => text.push_str(&number.to_string()),
                        other => {
                            return Err(of(expression, &format!("{other} in a text: only strings and integers are")));
                        }
                    }
                }
            }
        }
        let value = Value::from(text);
        check_type(&self.pointer, &value).map_err(|why| format!("{}: {value}: {why}", title(&self.path)))?;
        Ok(value)
    }
}

/// A value of the type that the kubelet decodes there, as far as that is known: it reads nothing of a file with another one.
fn check_type(pointer: &str, value: &Value) -> Result<(), String> {
    let mut steps = pointer.split('/').skip(1);
    let top = steps.next().and_then(table::find).map(|hazard| hazard.of);
    let of = top.and_then(|top| steps.try_fold(top, Type::below));
    let (wanted, is_it) = match of {
        Some(Type::Bool) => ("a truth value", value.is_boolean()),
        Some(Type::Int) => ("an integer", value.is_i64()),
        Some(Type::Float) => ("a number", value.is_number()),
        Some(Type::List(_) | Type::Set(_)) => ("a list", value.is_array()),
        Some(Type::Map(_) | Type::Struct(_) | Type::Optional(_)) => ("a mapping", value.is_object()),
        Some(_) => ("a string", value.is_string()),
        None => ("something else", !value.is_f64()),
    };
    if is_it { Ok(()) } else { Err(format!("the result is {value}, and the field holds {wanted}")) }
}
