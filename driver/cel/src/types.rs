//! The checker's types, and their unification.

use std::fmt;
use std::sync::Arc;

/// The type of an expression. `Dyn` is any type, as for device attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Type {
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    Str,
    Bytes,
    Duration,
    Timestamp,
    /// A type that is not known yet.
    Param(u32),
    List(Arc<Type>),
    Map(Arc<(Type, Type)>),
    Optional(Arc<Type>),
    /// The type of a type.
    Meta(Arc<Type>),
    /// A type of Kubernetes' library, by name.
    Object(&'static str),
}

impl Type {
    pub(crate) const DEVICE: Self = Self::Object("kubernetes.DRADevice");

    pub(crate) fn list(element: Self) -> Self {
        Self::List(Arc::new(element))
    }

    pub(crate) fn map(key: Self, value: Self) -> Self {
        Self::Map(Arc::new((key, value)))
    }

    pub(crate) fn optional(value: Self) -> Self {
        Self::Optional(Arc::new(value))
    }

    /// The type without its `optional`, and whether it had one.
    pub(crate) fn unwrap_optional(&self) -> (&Self, bool) {
        match self {
            Self::Optional(value) => (value, true),
            other => (other, false),
        }
    }

    fn accepts_null(&self) -> bool {
        matches!(
            self,
            Self::Null | Self::Object(_) | Self::Optional(_) | Self::Duration | Self::Timestamp
        )
    }

    /// The type with its parameters renumbered to start at `offset`.
    pub(crate) fn shifted(&self, offset: u32) -> Self {
        match self {
            Self::Param(n) => Self::Param(n + offset),
            Self::List(t) => Self::list(t.shifted(offset)),
            Self::Map(kv) => Self::map(kv.0.shifted(offset), kv.1.shifted(offset)),
            Self::Optional(t) => Self::optional(t.shifted(offset)),
            Self::Meta(t) => Self::Meta(Arc::new(t.shifted(offset))),
            other => other.clone(),
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dyn => f.write_str("dyn"),
            Self::Null => f.write_str("null"),
            Self::Bool => f.write_str("bool"),
            Self::Int => f.write_str("int"),
            Self::Uint => f.write_str("uint"),
            Self::Double => f.write_str("double"),
            Self::Str => f.write_str("string"),
            Self::Bytes => f.write_str("bytes"),
            Self::Duration => f.write_str("duration"),
            Self::Timestamp => f.write_str("timestamp"),
            Self::Param(_) => f.write_str("any"),
            Self::List(t) => write!(f, "list({t})"),
            Self::Map(kv) => write!(f, "map({}, {})", kv.0, kv.1),
            Self::Optional(t) => write!(f, "optional({t})"),
            Self::Meta(t) => write!(f, "type({t})"),
            Self::Object(name) => f.write_str(name),
        }
    }
}

/// Limit of unification steps, more than any ordinary expression needs. A type, and the work on it, can grow
/// exponentially with the expression's length (`{x: x}` in `cel.bind` in `cel.bind` ...).
const STEPS: u32 = 2_000_000;

/// The types that parameters stand for so far.
#[derive(Default)]
pub(crate) struct Unifier {
    bound: Vec<Option<Type>>,
    /// For each binding since the start, the parameter's previous value, to undo it.
    trail: Vec<(u32, Option<Type>)>,
    steps: u32,
}

impl Unifier {
    pub(crate) fn fresh(&mut self) -> Type {
        Type::Param(self.fresh_params(1))
    }

    /// Creates `count` parameters and returns the number of the first.
    pub(crate) fn fresh_params(&mut self, count: u32) -> u32 {
        let first = self.bound.len() as u32;
        self.bound.resize(self.bound.len() + count as usize, None);
        first
    }

    /// Returns true if the expression is too complex to determine its types.
    pub(crate) fn exhausted(&self) -> bool {
        self.steps > STEPS
    }

    fn step(&mut self) -> bool {
        self.steps = self.steps.saturating_add(1);
        !self.exhausted()
    }

    /// Returns true if each type of one list is assignable to its partner in the other. Otherwise undoes all bindings.
    pub(crate) fn assignable_all<'a>(&mut self, pairs: impl Iterator<Item = (&'a Type, &'a Type)>) -> bool {
        let start = self.trail.len();
        for (from, to) in pairs {
            if !self.unify(from, to) {
                while self.trail.len() > start {
                    if let Some((param, before)) = self.trail.pop() {
                        self.bound[param as usize] = before;
                    }
                }
                return false;
            }
        }
        true
    }

    pub(crate) fn assignable(&mut self, from: &Type, to: &Type) -> bool {
        self.assignable_all(std::iter::once((from, to)))
    }

    fn bind(&mut self, param: u32, to: Type) {
        let before = self.bound[param as usize].replace(to);
        self.trail.push((param, before));
    }

    fn unify(&mut self, a: &Type, b: &Type) -> bool {
        if !self.step() {
            return false;
        }
        if let Type::Param(param) = b {
            let (valid, known) = self.substitutes(a, *param);
            if valid || known {
                return valid;
            }
        }
        if let Type::Param(param) = a {
            return self.substitutes(b, *param).0;
        }
        match (a, b) {
            (Type::Dyn, _) | (_, Type::Dyn) => true,
            (Type::Null, other) | (other, Type::Null) => other.accepts_null(),
            (Type::List(x), Type::List(y)) | (Type::Optional(x), Type::Optional(y)) => self.unify(x, y),
            (Type::Map(x), Type::Map(y)) => self.unify(&x.0, &y.0) && self.unify(&x.1, &y.1),
            (Type::Meta(_), Type::Meta(_)) => true,
            _ => a == b,
        }
    }

    /// Returns whether `param` may stand for `other`, and whether it was bound before.
    fn substitutes(&mut self, other: &Type, param: u32) -> (bool, bool) {
        if *other == Type::Param(param) {
            return (true, true);
        }
        if let Some(now) = self.bound[param as usize].clone() {
            if *other == now {
                return (true, true);
            }
            if self.unify(other, &now) {
                let general = if less_specific(other, &now) { other.clone() } else { now };
                if !self.occurs(param, &general) {
                    self.bind(param, general);
                }
                return (true, true);
            }
            return (false, true);
        }
        if self.occurs(param, other) {
            return (false, false);
        }
        self.bind(param, other.clone());
        (true, false)
    }

    fn occurs(&mut self, param: u32, within: &Type) -> bool {
        if !self.step() {
            return true;
        }
        match within {
            Type::Param(n) if *n == param => true,
            Type::Param(n) => match self.bound[*n as usize].clone() {
                Some(bound) => self.occurs(param, &bound),
                None => false,
            },
            Type::List(t) | Type::Optional(t) | Type::Meta(t) => self.occurs(param, t),
            Type::Map(kv) => self.occurs(param, &kv.0) || self.occurs(param, &kv.1),
            _ => false,
        }
    }

    /// Replaces parameters by their types; unbound parameters remain.
    pub(crate) fn resolve(&mut self, t: &Type) -> Type {
        self.substitute(t, false)
    }

    /// Like `resolve`, but unbound parameters become `dyn`.
    pub(crate) fn finish(&mut self, t: &Type) -> Type {
        self.substitute(t, true)
    }

    fn substitute(&mut self, t: &Type, last: bool) -> Type {
        if !self.step() {
            return Type::Dyn;
        }
        match t {
            Type::Param(n) => match self.bound[*n as usize].clone() {
                Some(bound) => self.substitute(&bound, last),
                None if last => Type::Dyn,
                None => t.clone(),
            },
            Type::List(e) => Type::list(self.substitute(e, last)),
            Type::Map(kv) => Type::map(self.substitute(&kv.0, last), self.substitute(&kv.1, last)),
            Type::Optional(e) => Type::optional(self.substitute(e, last)),
            Type::Meta(e) => Type::Meta(Arc::new(self.substitute(e, last))),
            other => other.clone(),
        }
    }

    /// The element type of a list after adding an element of type `next`.
    pub(crate) fn join(&mut self, before: Option<Type>, next: Type) -> Type {
        let Some(before) = before else { return next };
        if !self.assignable(&before, &next) {
            return Type::Dyn;
        }
        if less_specific(&before, &next) { before } else { next }
    }
}

/// Returns true if the first of two compatible types is at least as general.
fn less_specific(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::Dyn | Type::Param(_), _) => true,
        (_, Type::Dyn | Type::Param(_)) => false,
        (Type::List(x), Type::List(y)) | (Type::Optional(x), Type::Optional(y)) => less_specific(x, y),
        (Type::Map(x), Type::Map(y)) => less_specific(&x.0, &y.0) && less_specific(&x.1, &y.1),
        (Type::Meta(_), Type::Meta(_)) => true,
        _ => a == b,
    }
}
