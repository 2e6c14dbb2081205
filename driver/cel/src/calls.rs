//! Calls: chooses the function and overload of a call, and the code that runs for it.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, EntryExpr, Expr, LiteralValue};

use crate::CompileError;
use crate::check::{Checked, Checker, path, qualified, step};
use crate::cost;
use crate::declarations::{self, Overload};
use crate::evaluate::{Evaluation, can_index};
use crate::libraries;
use crate::libraries::format_text::{self, Verb};
use crate::libraries::pattern::Pattern;
use crate::node::{Call, Node, Root, Set, Step, StepKey};
use crate::types::Type;
use crate::value::{Fault, Value};

/// Limit of compiled patterns per expression. Compiling one takes milliseconds, and an expression could contain
/// hundreds.
const MOST_PATTERNS: usize = 64;

impl Checker<'_> {
    pub(crate) fn call(&mut self, id: u64, call: &CallExpr) -> Checked {
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
        // `sets.contains(a, b)` looks like a method of `sets`, but is a function with that name.
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

    /// Returns the overload (empty if there are several) and the type of the result.
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
                format!(
                    "found no matching overload for {shown:?} applied to {receiver}({})",
                    given.join(", ")
                ),
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
                step(
                    operand,
                    Step {
                        key: step_key(index),
                        optional,
                    },
                    false,
                )
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
            ("matches" | "find" | "findAll", Some(Value::Str(_))) if self.patterns == MOST_PATTERNS => {
                return Err(self.error(id, format!("the expression has more than {MOST_PATTERNS} patterns")));
            }
            ("matches" | "find" | "findAll", Some(Value::Str(text))) => match Pattern::new(text.as_str()) {
                Ok(pattern) => Some(pattern),
                Err(why) => return Err(self.error(id, format!("invalid {name} argument: {why}"))),
            },
            _ => None,
        };
        self.patterns += usize::from(pattern.is_some());
        let constant = args.len() == 1 && args[0].constant().is_some() && libraries::is_conversion(name);
        // cel-go calls two arguments directly if it knows the overload or has one implementation for all.
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
        let parsed = call.args.iter().all(|arg| arg.constant().is_some())
            && matches!(name, "quantity" | "semver" | "ip" | "cidr" | "url");
        if !constant && !parsed {
            return Ok(Node::Call(Box::new(call)));
        }
        let arg: Vec<_> = call.args.iter().filter_map(|arg| arg.constant().cloned()).collect();
        if parsed {
            // A value that cannot be parsed is an error only when the call runs.
            return Ok(match (call.function)(&mut Evaluation::constant(), &call, &arg) {
                Ok(value) => Node::Prepaid(Box::new((value, call.price.before(&arg)))),
                Err(_) => Node::Call(Box::new(call)),
            });
        }
        match (call.function)(&mut Evaluation::constant(), &call, &arg) {
            Ok(value) => Ok(Node::Const(value)),
            Err(Fault::Error(why)) => Err(self.error(id, format!("invalid {name} argument: {why}"))),
            Err(Fault::Stop(_)) => Err(self.error(id, format!("invalid {name} argument"))),
        }
    }

    /// Checks a constant format string with a literal list, as far as the types are known.
    fn check_format(&mut self, id: u64, args: &[IdedExpr], target: Option<&IdedExpr>) -> Result<(), CompileError> {
        let (
            Some(IdedExpr {
                expr: Expr::Literal(LiteralValue::String(text)),
                ..
            }),
            [list],
        ) = (target, args)
        else {
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
                format!(
                    "too many arguments supplied to string.format (expected {}, got {})",
                    verbs.len(),
                    list.elements.len()
                ),
            ));
        }
        for (verb, element) in verbs.iter().zip(&list.elements) {
            self.check_formatted(*verb, element)?;
        }
        Ok(())
    }

    /// Checks one value of a format; for a literal list or map also the values in it.
    fn check_formatted(&mut self, verb: Verb, element: &IdedExpr) -> Result<(), CompileError> {
        let t = self.formatted.get(&element.id).cloned().unwrap_or(Type::Dyn);
        let t = self.unifier.resolve(&t);
        if !format_text::accepts(verb, &t) {
            return Err(self.error(element.id, format!("{t} is not allowed for %{verb}")));
        }
        match &element.expr {
            Expr::List(list) => list
                .elements
                .iter()
                .try_for_each(|part| self.check_formatted(verb, part)),
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

fn step_key(index: Node) -> StepKey {
    match index {
        Node::Const(Value::Str(text)) => StepKey::Text(text),
        Node::Const(value) => StepKey::Const(value),
        other => StepKey::Node(other),
    }
}
