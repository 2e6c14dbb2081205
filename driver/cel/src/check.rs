//! Checks a parsed expression: resolves names, types and overloads, so that a selector that cannot work is an error
//! even if its evaluation would never reach the mistake.
//!
//! The rules are those of cel-go's checker: it unifies with `dyn`, accepts all overloads that match, and gives a call
//! with several of them the type `dyn` unless their types agree.

use std::collections::HashMap;

use cel::IdedExpr;
use cel::common::ast::{EntryExpr, Expr, IdedEntryExpr, ListExpr, LiteralValue, SelectExpr, SourceInfo};

use crate::node::{Entry, Item, Node, Path, Root, Step, StepKey};
use crate::types::{Type, Unifier};
use crate::value::{Key, Map, Text, Value};
use crate::{CompileError, position};

pub(crate) struct Checker<'a> {
    source: &'a SourceInfo,
    pub(crate) unifier: Unifier,
    /// Variables in scope, the innermost last: name, type, slot.
    pub(crate) scope: Vec<(String, Type, usize)>,
    /// Number of slots that the program needs.
    pub(crate) slots: usize,
    /// Types in one literal that must turn out equal, with the literal's position.
    alike: Vec<(Vec<Type>, u64)>,
    /// Depth of calls to format(), whose argument may mix types.
    pub(crate) formatting: u32,
    /// Number of constant patterns so far.
    pub(crate) patterns: usize,
    /// Types found inside calls of format().
    pub(crate) formatted: HashMap<u64, Type>,
}

pub(crate) type Checked = Result<(Node, Type), CompileError>;

/// Returns the program and its number of slots.
pub(crate) fn check(expression: &IdedExpr, source: &SourceInfo) -> Result<(Node, usize), CompileError> {
    let mut checker = Checker {
        source,
        unifier: Unifier::default(),
        scope: Vec::new(),
        slots: 0,
        alike: Vec::new(),
        formatting: 0,
        patterns: 0,
        formatted: HashMap::new(),
    };
    let (node, result) = checker.check(expression)?;
    let result = checker.unifier.finish(&result);
    if !matches!(result, Type::Bool | Type::Dyn) {
        return Err(checker.error(
            expression.id,
            format!("must evaluate to bool or an unknown type, not {result}"),
        ));
    }
    checker.check_alike()?;
    Ok((node, checker.slots))
}

impl Checker<'_> {
    pub(crate) fn error(&self, id: u64, message: impl Into<String>) -> CompileError {
        let message = if self.unifier.exhausted() {
            "is too complex to check its types; write a shorter one".to_owned()
        } else {
            message.into()
        };
        let (line, column) = self
            .source
            .offset_for(id)
            .map_or((1, 1), |(start, _)| position(&self.source.source, start as usize));
        CompileError { line, column, message }
    }

    pub(crate) fn check(&mut self, expression: &IdedExpr) -> Checked {
        let checked = self.check_any(expression)?;
        if self.formatting > 0 {
            self.formatted.insert(expression.id, checked.1.clone());
        }
        Ok(checked)
    }

    fn check_any(&mut self, expression: &IdedExpr) -> Checked {
        let id = expression.id;
        match &expression.expr {
            Expr::Literal(literal) => Ok(constant(literal)),
            Expr::Ident(name) => self.ident(id, name),
            Expr::Select(select) => self.select(id, select),
            Expr::Call(call) => self.call(id, call),
            Expr::List(list) => self.list(list),
            Expr::Map(map) => self.map(&map.entries),
            Expr::Struct(of) => Err(self.error(id, format!("undeclared reference to {:?}", of.type_name))),
            Expr::Comprehension(_) | Expr::Unspecified => Err(self.error(id, "is not understood")),
        }
    }

    fn ident(&mut self, id: u64, name: &str) -> Checked {
        let variable = self.scope.iter().rev().find(|(known, ..)| known == name);
        if let Some((t, slot)) = variable.map(|(_, t, slot)| (t.clone(), *slot)) {
            self.must_not_be_type(id, name, &t)?;
            return Ok((path(Root::Slot(slot)), t));
        }
        let name = name.strip_prefix('.').unwrap_or(name);
        if name == "device" {
            return Ok((path(Root::Device), Type::DEVICE));
        }
        match type_name(name) {
            Some((name, t)) => Ok((Node::Const(Value::Type(name)), Type::Meta(t.into()))),
            None => Err(self.error(id, format!("undeclared reference to {name:?}"))),
        }
    }

    /// If a variable is known to hold a type, cel-go searches for it among the names of types, and does not find it.
    pub(crate) fn must_not_be_type(&mut self, id: u64, name: &str, t: &Type) -> Result<(), CompileError> {
        match self.unifier.resolve(t) {
            Type::Meta(_) => Err(self.error(id, format!("reference to undefined type: {name}"))),
            _ => Ok(()),
        }
    }

    fn select(&mut self, id: u64, select: &SelectExpr) -> Checked {
        if let Some(name) = qualified(&select.operand, &select.field)
            && let Some((name, t)) = type_name(&name)
        {
            return Ok((Node::Const(Value::Type(name)), Type::Meta(t.into())));
        }
        self.field(id, &select.operand, &select.field, false, false)
    }

    /// Checks `operand.field`, `operand.?field`, or has() of it.
    pub(crate) fn field(&mut self, id: u64, operand: &IdedExpr, field: &str, optional: bool, test: bool) -> Checked {
        let (node, operand) = self.check(operand)?;
        let operand = self.unifier.resolve(&operand);
        let (target, was_optional) = operand.unwrap_optional();
        let found = match target {
            Type::Map(kv) => kv.1.clone(),
            Type::Dyn => Type::Dyn,
            Type::Param(_) => {
                self.unifier.assignable(&Type::Dyn, target);
                Type::Dyn
            }
            Type::Object("kubernetes.DRADevice") => match field {
                "driver" => Type::Str,
                "allowMultipleAllocations" => Type::Bool,
                "attributes" => Type::map(Type::Str, Type::map(Type::Str, Type::Dyn)),
                "capacity" => Type::map(Type::Str, Type::map(Type::Str, Type::Object("kubernetes.Quantity"))),
                _ => return Err(self.error(id, format!("undefined field {field:?}"))),
            },
            Type::Object(_) if !matches!(target, Type::Object("net.IP" | "net.CIDR")) => {
                return Err(self.error(id, format!("undefined field {field:?}")));
            }
            other => return Err(self.error(id, format!("type {other} does not support field selection"))),
        };
        let key = StepKey::Text(Text::Owned(field.into()));
        let result = match (test, optional || was_optional) {
            (true, _) => Type::Bool,
            (false, true) => Type::optional(found),
            (false, false) => found,
        };
        Ok((step(node, Step { key, optional }, test), result))
    }

    fn list(&mut self, list: &ListExpr) -> Checked {
        let mut elements: Option<Type> = None;
        let mut items = Vec::with_capacity(list.elements.len());
        let mut types = Vec::new();
        for (index, element) in list.elements.iter().enumerate() {
            let optional = list.optional_indices.contains(&index);
            let (node, t) = self.check(element)?;
            let t = self.entry_type(element.id, t, optional)?;
            types.push(t.clone());
            elements = Some(self.unifier.join(elements, t));
            items.push(Item { node, optional });
        }
        self.note_alike(types, list.elements.first());
        let of = elements.unwrap_or_else(|| self.unifier.fresh());
        let constants: Option<Vec<_>> = items
            .iter()
            .map(|item| item.node.constant().filter(|_| !item.optional).cloned())
            .collect();
        Ok((
            match constants {
                Some(constants) => Node::Const(Value::list(constants)),
                None => Node::List(items.into()),
            },
            Type::list(of),
        ))
    }

    fn map(&mut self, entries: &[IdedEntryExpr]) -> Checked {
        let (mut keys, mut values): (Option<Type>, Option<Type>) = (None, None);
        let (mut key_types, mut value_types) = (Vec::new(), Vec::new());
        let mut nodes = Vec::with_capacity(entries.len());
        let mut first = None;
        for entry in entries {
            let EntryExpr::MapEntry(entry) = &entry.expr else {
                return Err(self.error(entry.id, "is not an entry of a map"));
            };
            first = first.or(Some(&entry.key));
            let (key, t) = self.check(&entry.key)?;
            key_types.push(t.clone());
            keys = Some(self.unifier.join(keys, t));
            let (value, t) = self.check(&entry.value)?;
            let t = self.entry_type(entry.value.id, t, entry.optional)?;
            value_types.push(t.clone());
            values = Some(self.unifier.join(values, t));
            nodes.push(Entry {
                key,
                value,
                optional: entry.optional,
            });
        }
        self.note_alike(key_types, first);
        self.note_alike(value_types, first);
        let key = keys.unwrap_or_else(|| self.unifier.fresh());
        let value = values.unwrap_or_else(|| self.unifier.fresh());
        let node = match constant_map(&nodes) {
            Some(map) => Node::Const(Value::Map(map)),
            None => Node::Map(nodes.into()),
        };
        Ok((node, Type::map(key, value)))
    }

    /// The type of an element. For `?element`, the type inside the optional.
    fn entry_type(&mut self, id: u64, t: Type, optional: bool) -> Result<Type, CompileError> {
        if !optional {
            return Ok(t);
        }
        let t = self.unifier.resolve(&t);
        match t.unwrap_optional() {
            (inner, true) => Ok(inner.clone()),
            (Type::Dyn, false) => Ok(Type::Dyn),
            (other, false) => Err(self.error(id, format!("expected type optional({other}) but found {other}"))),
        }
    }

    fn note_alike(&mut self, types: Vec<Type>, first: Option<&IdedExpr>) {
        if let Some(first) = first
            && self.formatting == 0
            && types.len() > 1
        {
            self.alike.push((types, first.id));
        }
    }

    fn check_alike(&mut self) -> Result<(), CompileError> {
        for (types, id) in std::mem::take(&mut self.alike) {
            let finished: Vec<_> = types.iter().map(|t| self.unifier.finish(t)).collect();
            if let Some(other) = finished.iter().find(|t| **t != finished[0]) {
                return Err(self.error(
                    id,
                    format!("expected type {} but found {other} in one literal", finished[0]),
                ));
            }
        }
        if self.unifier.exhausted() {
            return Err(self.error(0, ""));
        }
        Ok(())
    }
}

pub(crate) fn path(root: Root) -> Node {
    Node::Path(Box::new(Path {
        root,
        steps: Vec::new(),
        test: false,
    }))
}

/// Adds a selection to a value: extends a path, or makes another node the root of a new path.
pub(crate) fn step(node: Node, step: Step, test: bool) -> Node {
    let mut path = match node {
        Node::Path(path) if !path.test => path,
        other => Box::new(Path {
            root: Root::Node(other),
            steps: Vec::new(),
            test: false,
        }),
    };
    path.steps.push(step);
    path.test = test;
    Node::Path(path)
}

fn constant(literal: &LiteralValue) -> (Node, Type) {
    let (value, t) = match literal {
        LiteralValue::Boolean(b) => (Value::Bool(**b), Type::Bool),
        LiteralValue::Int(i) => (Value::Int(**i), Type::Int),
        LiteralValue::UInt(u) => (Value::Uint(**u), Type::Uint),
        LiteralValue::Double(d) => (Value::Double(**d), Type::Double),
        LiteralValue::String(text) => (Value::text(text.inner()), Type::Str),
        LiteralValue::Bytes(bytes) => (Value::Bytes(bytes.inner().into()), Type::Bytes),
        LiteralValue::Null => (Value::Null, Type::Null),
    };
    (Node::Const(value), t)
}

fn constant_map(entries: &[Entry]) -> Option<Map<'static>> {
    let mut map = std::collections::BTreeMap::<Key, (Value<'static>, Value<'static>)>::new();
    for entry in entries {
        if entry.optional {
            return None;
        }
        let (key, value) = (entry.key.constant()?, entry.value.constant()?);
        map.insert(key.key()?, (key.clone(), value.clone()));
    }
    Some(Map::Owned(map.into()))
}

/// Returns `a.b.c` as text if the expression consists only of names.
pub(crate) fn qualified(operand: &IdedExpr, field: &str) -> Option<String> {
    let mut parts = vec![field];
    let mut at = operand;
    loop {
        match &at.expr {
            Expr::Ident(name) => {
                parts.push(name.strip_prefix('.').unwrap_or(name));
                parts.reverse();
                return Some(parts.join("."));
            }
            Expr::Select(select) if !select.test => {
                parts.push(&select.field);
                at = &select.operand;
            }
            _ => return None,
        }
    }
}

/// Names of types, which are also values.
fn type_name(name: &str) -> Option<(&'static str, Type)> {
    let any_list = || Type::list(Type::Dyn);
    Some(match name {
        "bool" => ("bool", Type::Bool),
        "bytes" => ("bytes", Type::Bytes),
        "double" => ("double", Type::Double),
        "int" => ("int", Type::Int),
        "uint" => ("uint", Type::Uint),
        "string" => ("string", Type::Str),
        "list" => ("list", any_list()),
        "map" => ("map", Type::map(Type::Dyn, Type::Dyn)),
        "null_type" => ("null_type", Type::Null),
        "type" => ("type", Type::Meta(Type::Dyn.into())),
        "optional_type" => ("optional_type", Type::optional(Type::Dyn)),
        "google.protobuf.Duration" => ("google.protobuf.Duration", Type::Duration),
        "google.protobuf.Timestamp" => ("google.protobuf.Timestamp", Type::Timestamp),
        "net.IP" => ("net.IP", Type::Object("net.IP")),
        "net.CIDR" => ("net.CIDR", Type::Object("net.CIDR")),
        _ => return None,
    })
}
