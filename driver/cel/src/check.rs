//! From a parsed expression to one that can run: names, types and overloads are settled here, so that a selector that
//! cannot work is an error even where its evaluation would never come that far.
//!
//! The rules are those of cel-go's checker: unification with `dyn`, all overloads that match are taken, and the type of
//! several is `dyn` unless they agree.

use std::collections::HashMap;

use cel::IdedExpr;
use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedEntryExpr, ListExpr, LiteralValue, SelectExpr, SourceInfo};

use crate::cost;
use crate::declarations::{self, Overload};
use crate::evaluate::{Evaluation, can_index};
use crate::libraries::format_text::{self, Verb};
use crate::libraries::pattern::Pattern;
use crate::libraries;
use crate::node::{Call, Entry, Item, Node, Path, Root, Set, Step, StepKey};
use crate::types::{Type, Unifier};
use crate::value::{Fault, Key, Map, Text, Value};
use crate::{CompileError, position};

pub(crate) struct Checker<'a> {
    source: &'a SourceInfo,
    pub(crate) unifier: Unifier,
    /// Variables in scope, the innermost last: name, type, slot.
    pub(crate) scope: Vec<(String, Type, usize)>,
    /// How many slots the program needs.
    pub(crate) slots: usize,
    /// Types in one literal that must be the same at the end, with where it stands.
    alike: Vec<(Vec<Type>, u64)>,
    /// Within a call of format(), whose argument may mix types.
    formatting: u32,
    /// What was found out within calls of format().
    formatted: HashMap<u64, Type>,
}

pub(crate) type Checked = Result<(Node, Type), CompileError>;

/// The program and the number of its slots.
pub(crate) fn check(expression: &IdedExpr, source: &SourceInfo) -> Result<(Node, usize), CompileError> {
    let mut checker = Checker {
        source,
        unifier: Unifier::default(),
        scope: Vec::new(),
        slots: 0,
        alike: Vec::new(),
        formatting: 0,
        formatted: HashMap::new(),
    };
    let (node, result) = checker.check(expression)?;
    let result = checker.unifier.finish(&result);
    if !matches!(result, Type::Bool | Type::Dyn) {
        return Err(checker.error(expression.id, format!("must evaluate to bool or an unknown type, not {result}")));
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

    fn ident(&self, id: u64, name: &str) -> Checked {
        if let Some((_, t, slot)) = self.scope.iter().rev().find(|(known, ..)| known == name) {
            return Ok((path(Root::Slot(*slot)), t.clone()));
        }
        let name = name.strip_prefix('.').unwrap_or(name);
        if name == "device" {
            return Ok((path(Root::Device), Type::DEVICE));
        }
        match type_name(name) {
            Some((name, t)) => Ok((Node::Const(Value::Type(name)), Type::Type(t.into()))),
            None => Err(self.error(id, format!("undeclared reference to {name:?}"))),
        }
    }

    fn select(&mut self, id: u64, select: &SelectExpr) -> Checked {
        if let Some(name) = qualified(&select.operand, &select.field)
            && let Some((name, t)) = type_name(&name)
        {
            return Ok((Node::Const(Value::Type(name)), Type::Type(t.into())));
        }
        self.field(id, &select.operand, &select.field, false, false)
    }

    /// `operand.field`, `operand.?field`, or has() of it.
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

    /// The type of an element, without the optional of `?element`.
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
                return Err(self.error(id, format!("expected type {} but found {other} in one literal", finished[0])));
            }
        }
        if self.unifier.exhausted() {
            return Err(self.error(0, ""));
        }
        Ok(())
    }

    fn call(&mut self, id: u64, call: &CallExpr) -> Checked {
        if let Some(done) = self.expand(id, call) {
            return done;
        }
        let name = call.func_name.as_str();
        if name == "_?._" {
            return match call.args.as_slice() {
                [operand, field] => match &field.expr {
                    Expr::Literal(LiteralValue::String(field)) => self.field(id, operand, field, true, false),
                    _ => Err(self.error(field.id, "an optional field needs a name")),
                },
                _ => Err(self.error(id, "an optional field selection has two parts")),
            };
        }
        // `sets.contains(a, b)` looks like a method of `sets`, but is a function of that name.
        let namespaced = call
            .target
            .as_ref()
            .and_then(|target| qualified(target, name))
            .and_then(|name| declarations::function(&name));
        let (declared, target) = match namespaced {
            Some(found) => (Some(found), None),
            None => (
                declarations::function(name.strip_prefix('.').unwrap_or(name)),
                call.target.as_deref(),
            ),
        };
        let formats = name == "format";
        self.formatting += u32::from(formats);
        let mut args = Vec::with_capacity(call.args.len() + 1);
        let mut types = Vec::with_capacity(call.args.len() + 1);
        for part in target.into_iter().chain(&call.args) {
            let (node, t) = self.check(part)?;
            args.push(node);
            types.push(t);
        }
        self.formatting -= u32::from(formats);
        let Some((name, overloads)) = declared else {
            return Err(self.error(id, format!("undeclared reference to {name:?}")));
        };
        let (overload, result) = self.resolve(id, name, overloads, target.is_some(), &types)?;
        if name == "format" {
            self.check_format(id, &call.args, target)?;
        }
        let node = self.build(id, name, overload, args)?;
        Ok((node, result))
    }

    /// The overload (empty: several) and the type of the result.
    pub(crate) fn resolve(
        &mut self,
        id: u64,
        name: &'static str,
        overloads: &'static [Overload],
        member: bool,
        args: &[Type],
    ) -> Result<(&'static str, Type), CompileError> {
        if matches!(name, "_&&_" | "_||_") {
            for arg in args {
                if !self.unifier.assignable(arg, &Type::Bool) {
                    let found = self.unifier.finish(arg);
                    return Err(self.error(id, format!("expected type bool but found {found}")));
                }
            }
            return Ok(("logical", Type::Bool));
        }
        let mut found: Option<(&'static str, Type)> = None;
        for overload in overloads {
            if overload.member != member || overload.args.len() != args.len() {
                continue;
            }
            let first = self.unifier.fresh_params(overload.params);
            let wanted: Vec<Type> = overload.args.iter().map(|t| t.shifted(first)).collect();
            if !self.unifier.assignable_all(args.iter().zip(&wanted)) {
                continue;
            }
            let result = self.unifier.resolve(&overload.result.shifted(first));
            found = Some(match found {
                None => (overload.id, result),
                Some((_, before)) if before == Type::Dyn || before == result => ("", before),
                Some(_) => ("", Type::Dyn),
            });
        }
        found.ok_or_else(|| {
            let given: Vec<_> = args.iter().map(|t| self.unifier.finish(t).to_string()).collect();
            let (receiver, given) = given.split_at(usize::from(member));
            let receiver = receiver.first().map_or(String::new(), |t| format!("{t}."));
            let shown = libraries::symbol(name);
            self.error(
                id,
                format!("found no matching overload for {shown:?} applied to {receiver}({})", given.join(", ")),
            )
        })
    }

    fn build(
        &mut self,
        id: u64,
        name: &'static str,
        overload: &'static str,
        mut args: Vec<Node>,
    ) -> Result<Node, CompileError> {
        let two = |args: Vec<Node>| -> Option<Box<(Node, Node)>> {
            let [a, b] = <[Node; 2]>::try_from(args).ok()?;
            Some(Box::new((a, b)))
        };
        if matches!(name, "_[_]" | "_[?_]")
            && let Some(key) = args.get(1).and_then(Node::constant)
            && !can_index(key)
        {
            return Err(self.error(id, format!("invalid qualifier type: {}", key.type_name())));
        }
        let special = match name {
            "_&&_" => two(args).map(Node::And),
            "_||_" => two(args).map(Node::Or),
            "_==_" | "_!=_" => two(args).map(|sides| Node::Equal {
                sides,
                negated: name == "_!=_",
            }),
            "or" => two(args).map(Node::OrOptional),
            "orValue" => two(args).map(Node::OrValue),
            "_?_:_" => <[Node; 3]>::try_from(args)
                .ok()
                .map(|parts| path(Root::Choice(Box::new(parts)))),
            "_[_]" | "_[?_]" => two(args).map(|parts| {
                let (operand, index) = *parts;
                let optional = name == "_[?_]";
                step(operand, Step { key: step_key(index), optional }, false)
            }),
            _ => {
                if overload == "in_list"
                    && let Some(Value::List(list)) = args.get(1).and_then(Node::constant)
                {
                    if list.is_empty() {
                        return Ok(Node::Const(Value::Bool(false)));
                    }
                    if let Some(set) = Set::of(list) {
                        return Ok(Node::InSet(Box::new((args.swap_remove(0), set))));
                    }
                }
                return self.build_call(id, name, overload, args);
            }
        };
        special.ok_or_else(|| self.error(id, format!("{name} has a wrong number of arguments")))
    }

    fn build_call(
        &mut self,
        id: u64,
        name: &'static str,
        overload: &'static str,
        args: Vec<Node>,
    ) -> Result<Node, CompileError> {
        let pattern = match (name, args.get(1).and_then(Node::constant)) {
            ("matches" | "find" | "findAll", Some(Value::Str(text))) => match Pattern::new(text.as_str()) {
                Ok(pattern) => Some(pattern),
                Err(why) => return Err(self.error(id, format!("invalid {name} argument: {why}"))),
            },
            _ => None,
        };
        let constant = args.len() == 1 && args[0].constant().is_some() && libraries::is_conversion(name);
        // cel-go calls two arguments at once where it knows the overload or has one implementation for all.
        let dispatched = overload.is_empty() && !name.starts_with(['_', '@']) && !matches!(name, "size" | "sort");
        let sequential = args.len() > 2 || dispatched || name == "format" || pattern.is_some();
        let call = Call {
            function: libraries::function(name),
            name,
            overload,
            price: cost::price(name, overload),
            args,
            sequential,
            pattern,
        };
        if !constant {
            return Ok(Node::Call(Box::new(call)));
        }
        let arg: Vec<_> = call.args.iter().filter_map(|arg| arg.constant().cloned()).collect();
        match (call.function)(&mut Evaluation::constant(), &call, &arg) {
            Ok(value) => Ok(Node::Const(value)),
            Err(Fault::Error(why)) => Err(self.error(id, format!("invalid {name} argument: {why}"))),
            Err(Fault::Stop(_)) => Err(self.error(id, format!("invalid {name} argument"))),
        }
    }

    /// A constant format string with a literal list is checked as far as its types are known.
    fn check_format(&mut self, id: u64, args: &[IdedExpr], target: Option<&IdedExpr>) -> Result<(), CompileError> {
        let (Some(IdedExpr { expr: Expr::Literal(LiteralValue::String(text)), .. }), [list]) = (target, args) else {
            return Ok(());
        };
        let Expr::List(list) = &list.expr else { return Ok(()) };
        let verbs = format_text::verbs(text).map_err(|why| self.error(id, why.to_string()))?;
        if verbs.len() > list.elements.len() {
            return Err(self.error(id, format!("index {} out of range", list.elements.len())));
        }
        if verbs.len() < list.elements.len() {
            return Err(self.error(
                id,
                format!("too many arguments supplied to string.format (expected {}, got {})", verbs.len(), list.elements.len()),
            ));
        }
        for (verb, element) in verbs.iter().zip(&list.elements) {
            self.check_formatted(*verb, element)?;
        }
        Ok(())
    }

    /// One value of a format; of a literal list or map also those within.
    fn check_formatted(&mut self, verb: Verb, element: &IdedExpr) -> Result<(), CompileError> {
        let t = self.formatted.get(&element.id).cloned().unwrap_or(Type::Dyn);
        let t = self.unifier.resolve(&t);
        if !format_text::accepts(verb, &t) {
            return Err(self.error(element.id, format!("{t} is not allowed for %{verb}")));
        }
        match &element.expr {
            Expr::List(list) => list.elements.iter().try_for_each(|part| self.check_formatted(verb, part)),
            Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => {
                    self.check_formatted(verb, &entry.key)?;
                    self.check_formatted(verb, &entry.value)
                }
                EntryExpr::StructField(_) => Ok(()),
            }),
            _ => Ok(()),
        }
    }
}

fn path(root: Root) -> Node {
    Node::Path(Box::new(Path {
        root,
        steps: Vec::new(),
        test: false,
    }))
}

/// One more step from a value; a path grows, anything else becomes the root of one.
fn step(node: Node, step: Step, test: bool) -> Node {
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

fn step_key(index: Node) -> StepKey {
    match index {
        Node::Const(Value::Str(text)) => StepKey::Text(text),
        Node::Const(value) => StepKey::Const(value),
        other => StepKey::Node(other),
    }
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

/// `a.b.c` as text, if the expression is only names.
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

/// Names of types, which are values too.
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
        "type" => ("type", Type::Type(Type::Dyn.into())),
        "optional_type" => ("optional_type", Type::optional(Type::Dyn)),
        "google.protobuf.Duration" => ("google.protobuf.Duration", Type::Duration),
        "google.protobuf.Timestamp" => ("google.protobuf.Timestamp", Type::Timestamp),
        "net.IP" => ("net.IP", Type::Object("net.IP")),
        "net.CIDR" => ("net.CIDR", Type::Object("net.CIDR")),
        _ => return None,
    })
}
