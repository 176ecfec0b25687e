//! Expressions: CEL over what a Node reports. What is accepted here ends soon, whatever it is and whatever the Node says.
//!
//! The interpreter bounds neither time nor stack. So a source is short, its tree is walked before it is evaluated, and has
//! no loops (comprehensions), no great depth, and nothing but the functions and variables below.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators};
use cel::parser::PrattParser;
use cel::{Context, Env, ExecutionError};
use serde_json::Value;

use super::profiles;

/// Of one expression, in bytes.
const MAX_SOURCE: usize = 1024;
/// Of its tree.
const MAX_DEPTH: usize = 32;
/// Of the interpreter's words, in characters.
const MAX_MESSAGE: usize = 200;

const OPERATORS: [&str; 16] = [
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::SUBSTRACT,
    operators::ADD,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::GREATER_EQUALS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::LESS,
    operators::NEGATE,
];
const FUNCTIONS: [&str; 5] = ["int", "max", "min", "size", "string"];
const METHODS: [&str; 3] = ["contains", "endsWith", "startsWith"];
const PROFILE_FUNCTIONS: [&str; 8] = [
    "aks.cpuReserved",
    "aks.memoryReserved",
    "eks.cpuReserved",
    "eks.memoryReserved",
    "gke.cpuReserved",
    "gke.memoryReserved",
    "openshift.cpuReserved",
    "openshift.memoryReserved",
];

/// `node.os` and `node.arch`: every kubelet labels its Node with them.
const LABEL_VARIABLES: [(&str, &str); 2] = [("os", "kubernetes.io/os"), ("arch", "kubernetes.io/arch")];
const VARIABLES: [&str; 5] = ["cpu", "memory", "pods", "kubeletVersion", "kubeletMinor"];

/// Which of what a Node reports expressions ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Uses {
    /// `node.cpu` and its like.
    pub(super) variables: BTreeSet<String>,
    pub(super) labels: BTreeSet<String>,
}

/// What a Node reports, as far as it is asked for: Nodes with equal ones get equal results.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Inputs {
    /// Cores.
    pub(super) cpu: Option<u64>,
    /// Bytes.
    pub(super) memory: Option<u64>,
    pub(super) pods: Option<u64>,
    /// `v1.29.3`.
    pub(super) kubelet: Option<String>,
    pub(super) labels: BTreeMap<String, String>,
}

/// An expression that may be evaluated.
#[derive(Debug)]
pub(super) struct Expression {
    pub(super) source: String,
    tree: IdedExpr,
}

impl Expression {
    /// Adds to `uses` what it asks for.
    ///
    /// # Errors
    /// Why it may not be evaluated.
    pub(super) fn parse(source: &str, uses: &mut Uses) -> Result<Self, String> {
        if source.len() > MAX_SOURCE {
            return Err(format!("{} bytes, at most {MAX_SOURCE} are allowed", source.len()));
        }
        let parser = PrattParser::new().max_recursion_depth(24).error_recovery_limit(1);
        let parsed = guarded(|| parser.parse(source).map_err(|errors| errors.to_string()))?;
        let tree = parsed.map_err(|errors| {
            // Of each error the first line; the next ones point into the source.
            let line = errors.lines().find_map(|line| line.split_once(": Syntax error: ").map(|(_, what)| what));
            bounded(&format!("syntax error: {}", line.unwrap_or(errors.lines().last().unwrap_or_default())))
        })?;
        check(&tree, uses, MAX_DEPTH)?;
        Ok(Self { source: source.to_owned(), tree })
    }

    /// A string, an integer, a number or a truth value.
    ///
    /// # Errors
    /// Why there is none for these inputs.
    pub(super) fn evaluate(&self, inputs: &Inputs) -> Result<Value, String> {
        let context = context(inputs)?;
        let result = guarded(|| context.resolve(&self.tree))?;
        match result.map_err(|error| message(&error))? {
            cel::Value::Int(number) => Ok(Value::from(number)),
            cel::Value::String(text) => Ok(Value::from(text.as_str())),
            cel::Value::Bool(truth) => Ok(Value::from(truth)),
            cel::Value::Float(number) if number.is_finite() => Ok(Value::from(number)),
            cel::Value::Float(number) => Err(format!("the result is {number}")),
            _ => Err("the result is no string, number or truth value".to_owned()),
        }
    }
}

/// The crate is young; what it does not survive is the expression's fault and nobody else's.
fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| "the interpreter cannot cope with it".to_owned())
}

fn bounded(text: &str) -> String {
    text.chars().take(MAX_MESSAGE).collect()
}

fn message(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => {
            format!(
                "there is no {}",
                bounded(&format!("{key:?} (the Node does not report it, or the map has no such key)"))
            )
        }
        ExecutionError::Overflow(..) => "the number is too large".to_owned(),
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => "division by zero".to_owned(),
        ExecutionError::UnsupportedBinaryOperator(operator, one, other) => {
            bounded(&format!("{operator}: {one:?} and {other:?} do not go together"))
        }
        other => bounded(&other.to_string()),
    }
}

/// The walk itself goes no deeper than it allows.
fn check(tree: &IdedExpr, uses: &mut Uses, depth: usize) -> Result<(), String> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(format!("nested more than {MAX_DEPTH} deep"));
    };
    match &tree.expr {
        Expr::Literal(LiteralValue::Bytes(_) | LiteralValue::UInt(_)) => {
            Err("bytes and unsigned numbers are not known here".to_owned())
        }
        Expr::Literal(_) => Ok(()),
        Expr::List(list) if list.optional_indices.is_empty() => check_all(&list.elements, uses, depth),
        Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) if !entry.optional => {
                check(&entry.key, uses, depth)?;
                check(&entry.value, uses, depth)
            }
            _ => Err("optional entries are not known here".to_owned()),
        }),
        Expr::Select(select) => check_select(select, uses),
        Expr::Call(call) => check_call(call, uses, depth),
        Expr::Ident(name) => Err(format!("{name} is no variable: {}", variables())),
        Expr::Comprehension(_) => Err("all, exists, exists_one, filter and map are not known here".to_owned()),
        Expr::List(_) | Expr::Struct(_) | Expr::Unspecified => {
            Err("messages and optionals are not known here".to_owned())
        }
    }
}

fn check_all(trees: &[IdedExpr], uses: &mut Uses, depth: usize) -> Result<(), String> {
    trees.iter().try_for_each(|tree| check(tree, uses, depth))
}

/// `node.cpu`, `node.labels.x`, and `has()` of either.
fn check_select(select: &SelectExpr, uses: &mut Uses) -> Result<(), String> {
    let field = select.field.as_str();
    if is_labels(&select.operand) {
        uses.labels.insert(field.to_owned());
        return Ok(());
    }
    if !is_node(&select.operand) {
        return Err(format!(".{field}: only node and node.labels have fields"));
    }
    if let Some((_, label)) = LABEL_VARIABLES.iter().find(|(name, _)| *name == field) {
        uses.labels.insert((*label).to_owned());
    } else if VARIABLES.contains(&field) {
        uses.variables.insert(field.to_owned());
    } else {
        let labels = if field == "labels" { "node.labels stands with a label: node.labels['NAME']; " } else { "" };
        return Err(format!("{labels}node.{field} is no variable: {}", variables()));
    }
    Ok(())
}

fn check_call(call: &CallExpr, uses: &mut Uses, depth: usize) -> Result<(), String> {
    let name = call.func_name.as_str();
    match (&call.target, name, call.args.as_slice()) {
        (None, operators::INDEX, [map, key]) | (None, operators::IN, [key, map]) if is_labels(map) => {
            match &key.expr {
                Expr::Literal(LiteralValue::String(label)) => uses.labels.insert(label.inner().to_owned()),
                _ => return Err("a label is named by a literal: node.labels['NAME']".to_owned()),
            };
            return Ok(());
        }
        (None, operators::INDEX | operators::IN, _) => {}
        (None, _, _) if OPERATORS.contains(&name) || FUNCTIONS.contains(&name) => {}
        (Some(target), _, _) if METHODS.contains(&name) => check(target, uses, depth)?,
        (Some(target), _, _) => {
            let full = match &target.expr {
                Expr::Ident(space) => format!("{space}.{name}"),
                _ => format!(".{name}"),
            };
            if !PROFILE_FUNCTIONS.contains(&full.as_str()) {
                return Err(no_function(&full));
            }
        }
        (None, _, _) => return Err(no_function(name)),
    }
    check_all(&call.args, uses, depth)
}

fn is_node(tree: &IdedExpr) -> bool {
    matches!(&tree.expr, Expr::Ident(name) if name == "node")
}

fn is_labels(tree: &IdedExpr) -> bool {
    matches!(&tree.expr, Expr::Select(select) if select.field == "labels" && !select.test && is_node(&select.operand))
}

fn variables() -> String {
    let fields = VARIABLES.into_iter().chain(LABEL_VARIABLES.into_iter().map(|(name, _)| name));
    format!("there are node.labels, node.{}", fields.collect::<Vec<_>>().join(", node."))
}

fn no_function(name: &str) -> String {
    let known: Vec<&str> = FUNCTIONS.into_iter().chain(PROFILE_FUNCTIONS).collect();
    bounded(&format!("{name} is no function: there are {}", known.join(", ")))
}

/// Variables and functions. A variable that the Node does not report is not there.
fn context(inputs: &Inputs) -> Result<Context<'static, 'static>, String> {
    static ENV: OnceLock<Arc<Env>> = OnceLock::new();
    let mut context = Context::with_env(Arc::clone(ENV.get_or_init(|| Arc::new(Env::stdlib()))));
    let number = |number: Option<u64>| number.map(|it| cel::Value::Int(i64::try_from(it).unwrap_or(i64::MAX)));
    let text = |text: &String| cel::Value::from(text.clone());
    let minor = inputs.kubelet.as_ref().and_then(|version| kubelet_config::schema::minor(version).ok());
    let labelled = LABEL_VARIABLES.map(|(name, label)| (name, inputs.labels.get(label).map(text)));
    let values = [
        ("cpu", number(inputs.cpu)),
        ("memory", number(inputs.memory)),
        ("pods", number(inputs.pods)),
        ("kubeletVersion", inputs.kubelet.as_ref().map(text)),
        ("kubeletMinor", number(minor)),
    ];
    let values = values.into_iter().chain(labelled);
    let mut node: std::collections::HashMap<String, cel::Value> =
        values.filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
    let labels: std::collections::HashMap<String, cel::Value> =
        inputs.labels.iter().map(|(label, value)| (label.clone(), text(value))).collect();
    node.insert("labels".to_owned(), labels.into());
    context.add_variable_from_value("node", node);
    add_functions(&mut context).map_err(|error| error.to_string())?;
    Ok(context)
}

fn add_functions(context: &mut Context<'static, 'static>) -> Result<(), cel::DeclarationError> {
    /// A negative amount is none.
    fn amount(number: i64) -> u64 {
        u64::try_from(number).unwrap_or_default()
    }
    context.add_function("min", |one: i64, other: i64| one.min(other))?;
    context.add_function("max", |one: i64, other: i64| one.max(other))?;
    context.add_function("gke.cpuReserved", |cores: i64| profiles::gke_cpu(amount(cores)))?;
    context.add_function("gke.memoryReserved", |bytes: i64| profiles::gke_memory(amount(bytes)))?;
    context.add_function("eks.cpuReserved", |cores: i64| profiles::eks_cpu(amount(cores)))?;
    context.add_function("eks.memoryReserved", |pods: i64| profiles::eks_memory(amount(pods)))?;
    context.add_function("aks.cpuReserved", |cores: i64| profiles::aks_cpu(amount(cores)))?;
    let aks_memory = |bytes: i64, pods: i64| profiles::aks_memory(amount(bytes), amount(pods));
    context.add_function("aks.memoryReserved", aks_memory)?;
    context.add_function("openshift.cpuReserved", |cores: i64| profiles::openshift_cpu(amount(cores)))?;
    context.add_function("openshift.memoryReserved", |bytes: i64| profiles::openshift_memory(amount(bytes)))
}
