//! Macros: calls whose arguments are names and expressions, not only values.
//!
//! They run as loops of their own, not as the general comprehensions to which cel-go expands them. Their cost is
//! charged as if they were comprehensions (`fold`).

use cel::IdedExpr;
use cel::common::ast::{CallExpr, Expr};

use crate::CompileError;
use crate::check::{Checked, Checker};
use crate::declarations;
use crate::node::{Bind, Fold, FoldKind, Node, OptMap, SortBy};
use crate::types::Type;

impl Checker<'_> {
    /// Expands the call if it is a macro.
    pub(crate) fn expand(&mut self, id: u64, call: &CallExpr) -> Option<Checked> {
        let args = call.args.as_slice();
        let Some(target) = call.target.as_deref() else {
            return match (call.func_name.as_str(), args) {
                ("has", [arg]) => Some(match &arg.expr {
                    Expr::Select(select) => self.field(arg.id, &select.operand, &select.field, false, true),
                    _ => Err(self.error(arg.id, "invalid argument to has() macro")),
                }),
                _ => None,
            };
        };
        Some(match (call.func_name.as_str(), args) {
            ("all", [v, body]) => self.fold(id, target, FoldKind::All, [Some(v), None], None, body),
            ("exists", [v, body]) => self.fold(id, target, FoldKind::Exists, [Some(v), None], None, body),
            ("exists_one", [v, body]) => self.fold(id, target, FoldKind::ExistsOne, [Some(v), None], None, body),
            ("map", [v, body]) => self.fold(id, target, FoldKind::List, [Some(v), None], None, body),
            ("map", [v, filter, body]) => self.fold(id, target, FoldKind::List, [Some(v), None], Some(filter), body),
            ("filter", [v, filter]) => self.fold(id, target, FoldKind::List, [Some(v), None], Some(filter), v),
            ("all", [k, v, body]) => self.fold(id, target, FoldKind::All, [Some(k), Some(v)], None, body),
            ("exists", [k, v, body]) => self.fold(id, target, FoldKind::Exists, [Some(k), Some(v)], None, body),
            ("exists_one" | "existsOne", [k, v, body]) => {
                self.fold(id, target, FoldKind::ExistsOne, [Some(k), Some(v)], None, body)
            }
            ("transformList", [k, v, body]) => self.fold(id, target, FoldKind::List, [Some(k), Some(v)], None, body),
            ("transformList", [k, v, filter, body]) => {
                self.fold(id, target, FoldKind::List, [Some(k), Some(v)], Some(filter), body)
            }
            ("transformMap", [k, v, body]) => {
                self.fold(id, target, FoldKind::TransformMap, [Some(k), Some(v)], None, body)
            }
            ("transformMap", [k, v, filter, body]) => self.fold(
                id,
                target,
                FoldKind::TransformMap,
                [Some(k), Some(v)],
                Some(filter),
                body,
            ),
            ("transformMapEntry", [k, v, body]) => {
                self.fold(id, target, FoldKind::TransformMapEntry, [Some(k), Some(v)], None, body)
            }
            ("transformMapEntry", [k, v, filter, body]) => self.fold(
                id,
                target,
                FoldKind::TransformMapEntry,
                [Some(k), Some(v)],
                Some(filter),
                body,
            ),
            ("sortBy", [v, key]) => self.sort_by(id, target, v, key),
            ("optMap", [v, body]) => self.opt_map(id, target, v, body, false),
            ("optFlatMap", [v, body]) => self.opt_map(id, target, v, body, true),
            ("bind", [v, init, body]) if matches!(&target.expr, Expr::Ident(name) if name == "cel") => {
                self.bind(v, init, body)
            }
            _ => return None,
        })
    }

    fn variable(&self, of: &IdedExpr) -> Result<String, CompileError> {
        match &of.expr {
            Expr::Ident(name) if name == "__result__" || name == "@result" => {
                Err(self.error(of.id, "iteration variable overwrites accumulator variable"))
            }
            Expr::Ident(name) if !name.starts_with('.') => Ok(name.clone()),
            _ => Err(self.error(of.id, "argument must be a simple name")),
        }
    }

    fn enter(&mut self, name: String, t: Type) -> usize {
        let slot = self.slots;
        self.slots += 1;
        self.scope.push((name, t, slot));
        slot
    }

    fn fold(
        &mut self,
        id: u64,
        target: &IdedExpr,
        kind: FoldKind,
        variables: [Option<&IdedExpr>; 2],
        filter: Option<&IdedExpr>,
        body: &IdedExpr,
    ) -> Checked {
        let [first, second] = variables;
        let first = first.map_or(Ok(String::new()), |v| self.variable(v))?;
        let second_name = second.map(|v| self.variable(v)).transpose()?;
        if let Some(v) = second
            && second_name.as_ref() == Some(&first)
        {
            return Err(self.error(v.id, format!("duplicate variable name: {first}")));
        }
        let (range, range_type) = self.check(target)?;
        let (key, value) = self.elements(target, &range_type, second.is_some())?;
        let depth = self.scope.len();
        let first = self.enter(first, key.clone());
        let second = second_name.map(|name| self.enter(name, value));
        let filter = filter.map(|filter| self.predicate(filter)).transpose()?;
        let (body_node, body_type) = self.check(body)?;
        let result = match kind {
            FoldKind::All | FoldKind::Exists | FoldKind::ExistsOne => {
                self.must_be_bool(body, &body_type)?;
                Type::Bool
            }
            FoldKind::List => Type::list(self.unifier.resolve(&body_type)),
            FoldKind::TransformMap => Type::map(key, self.unifier.resolve(&body_type)),
            FoldKind::TransformMapEntry => {
                let entry = Type::map(self.unifier.fresh(), self.unifier.fresh());
                if !self.unifier.assignable(&body_type, &entry) {
                    let found = self.unifier.finish(&body_type);
                    return Err(self.error(id, format!("transformMapEntry needs a map, not {found}")));
                }
                self.unifier.resolve(&entry)
            }
        };
        self.scope.truncate(depth);
        let fold = Fold {
            range,
            kind,
            first,
            second,
            filter,
            body: body_node,
        };
        Ok((Node::Fold(Box::new(fold)), result))
    }

    /// The types of the variables of a fold over a list or map: of the elements, or of keys and values.
    fn elements(&mut self, target: &IdedExpr, range: &Type, are_two: bool) -> Result<(Type, Type), CompileError> {
        let range = self.unifier.resolve(range);
        Ok(match &range {
            Type::List(element) if are_two => (Type::Int, (**element).clone()),
            Type::List(element) => ((**element).clone(), Type::Dyn),
            Type::Map(kv) => kv.as_ref().clone(),
            Type::Dyn => (Type::Dyn, Type::Dyn),
            Type::Param(_) => {
                self.unifier.assignable(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let message = format!(
                    "expression of type {other} cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                return Err(self.error(target.id, message));
            }
        })
    }

    fn predicate(&mut self, filter: &IdedExpr) -> Result<Node, CompileError> {
        let (node, t) = self.check(filter)?;
        self.must_be_bool(filter, &t)?;
        Ok(node)
    }

    fn must_be_bool(&mut self, expression: &IdedExpr, t: &Type) -> Result<(), CompileError> {
        if self.unifier.assignable(t, &Type::Bool) {
            return Ok(());
        }
        let found = self.unifier.finish(t);
        Err(self.error(expression.id, format!("expected type bool but found {found}")))
    }

    fn bind(&mut self, variable: &IdedExpr, init: &IdedExpr, body: &IdedExpr) -> Checked {
        let name = self.variable(variable)?;
        let of = init.id;
        let (init, t) = self.check(init)?;
        // cel-go's expansion always uses the variable, even if the body does not.
        self.must_not_be_type(of, &name, &t)?;
        let depth = self.scope.len();
        let slot = self.enter(name, t);
        let (body, result) = self.check(body)?;
        self.scope.truncate(depth);
        let result = self.unifier.resolve(&result);
        Ok((Node::Bind(Box::new(Bind { slot, init, body })), result))
    }

    fn opt_map(&mut self, id: u64, target: &IdedExpr, variable: &IdedExpr, body: &IdedExpr, flat: bool) -> Checked {
        let name = self.variable(variable)?;
        let first_slot = self.slots;
        let (target_node, t) = self.check(target)?;
        let inner = self.unifier.fresh();
        if !self.unifier.assignable(&t, &Type::optional(inner.clone())) {
            let found = self.unifier.finish(&t);
            return Err(self.error(id, format!("optMap needs an optional, not {found}")));
        }
        let inner = self.unifier.resolve(&inner);
        self.must_not_be_type(target.id, &name, &inner)?;
        let depth = self.scope.len();
        let slot = self.enter(name, inner);
        let (body_node, body_type) = self.check(body)?;
        self.scope.truncate(depth);
        let result = if flat {
            let none = Type::optional(self.unifier.fresh());
            if !self.unifier.assignable(&none, &body_type) {
                let found = self.unifier.finish(&body_type);
                return Err(self.error(body.id, format!("optFlatMap needs an optional, not {found}")));
            }
            body_type
        } else {
            Type::optional(body_type)
        };
        let result = self.unifier.resolve(&result);
        let node = OptMap {
            target: target_node,
            first_slot,
            slot,
            body: body_node,
            flat,
        };
        Ok((Node::OptMap(Box::new(node)), result))
    }

    fn sort_by(&mut self, id: u64, target: &IdedExpr, variable: &IdedExpr, key: &IdedExpr) -> Checked {
        if matches!(target.expr, Expr::Literal(_) | Expr::Map(_) | Expr::Struct(_)) {
            let message = "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
            return Err(self.error(target.id, message));
        }
        let name = self.variable(variable)?;
        let (target_node, t) = self.check(target)?;
        let resolved = self.unifier.resolve(&t);
        let element = match &resolved {
            Type::List(element) => (**element).clone(),
            Type::Map(kv) => kv.0.clone(),
            Type::Dyn | Type::Param(_) => Type::Dyn,
            other => {
                let message = format!(
                    "expression of type {other} cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                return Err(self.error(target.id, message));
            }
        };
        let depth = self.scope.len();
        let slot = self.enter(name, element);
        let (key, key_type) = self.check(key)?;
        self.scope.truncate(depth);
        let Some((function, overloads)) = declarations::function("@sortByAssociatedKeys") else {
            return Err(self.error(id, "undeclared reference to \"sortBy\""));
        };
        let (overload, result) = self.resolve(id, function, overloads, true, &[t, Type::list(key_type)])?;
        let node = SortBy {
            target: target_node,
            slot,
            key,
            typed: !overload.is_empty(),
        };
        Ok((Node::SortBy(Box::new(node)), result))
    }
}
