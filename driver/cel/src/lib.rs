//! Device selectors of Dynamic Resource Allocation: the Common Expression Language as Kubernetes 1.37 runs it.
//!
//! ```text
//! "device.driver == ..." ─crate cel─► syntax ─check─► Node ──────┐
//!                                       │ names, types, overloads│ evaluate, with cost ─► true or false
//!                                       ▼                        │
//!                                  CompileError      Device ─────┘                   EvalError
//! ```
//!
//! **What this crate adds.** The crate `cel` parses with cel-go's grammar. It has no type checker, no cost and none of
//! Kubernetes' libraries. A cost cannot be added to its evaluator: that cannot be interrupted, and cel-go's cost
//! depends on the overload that a *checker* chose and on how selections were merged. So the checker (`check`, `types`,
//! `declarations`), the evaluator (`evaluate`, `fold`, `cost`) and the libraries are in this crate, and use that
//! syntax.
//!
//! **The environment** is the one in which Kubernetes 1.37 evaluates stored expressions, as an allocator does: it has
//! every library, and attributes of unknown type that may be lists, independently of feature gates. The cost estimate
//! by which the API server refuses some new selectors belongs to admission, and is not part of this crate.
//!
//! **Failure modes.** An expression is hostile text: everyone who may create a claim can write one. Parsing runs on a
//! stack of its own and is limited in depth; types are limited in steps; evaluation by Kubernetes' cost limit, and by
//! a budget for work that the cost does not include. Nothing here panics, blocks or allocates without a limit.
//! Exceeding a limit is an ordinary error.
//!
//! **Not supported**, and an error when an expression is compiled or run: protobuf messages
//! (`google.protobuf.Int64Value{...}`), time zones by region, hexadecimal floating-point texts.
#![forbid(unsafe_code)]

mod calls;
mod check;
mod cost;
mod declarations;
mod device;
mod equality;
mod evaluate;
mod fold;
mod libraries;
mod macros;
mod node;
mod parse;
mod path;
mod types;
mod value;

use std::sync::Arc;

pub use device::{Attribute, Device};
pub use vgpu_quantity::{Quantity, QuantityError};

use evaluate::Evaluation;
use node::Node;
use value::{Fault, Stop, Value};

/// The longest selector that Kubernetes stores.
pub const LONGEST_EXPRESSION: usize = 10 * 1024;
/// Kubernetes' cost limit of one evaluation.
pub const COST_LIMIT: u64 = 1_000_000;

/// A compiled selector. Cheap to clone, and can be shared between threads.
#[derive(Clone)]
pub struct Program {
    inner: Arc<Compiled>,
}

struct Compiled {
    root: Node,
    slots: usize,
    expression: String,
}

/// The reason why an expression is not a valid selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at {line}:{column}: {message}")]
pub struct CompileError {
    pub line: usize,
    pub column: usize,
    pub message: String,
}

/// The reason why a selector has no answer for a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    #[error("{0}")]
    Failed(String),
    #[error("the expression costs more than {COST_LIMIT}; write one that looks at less")]
    CostLimit,
    #[error("the expression makes or compares too much; write one that looks at less")]
    WorkLimit,
    #[error("the expression must yield bool, not {0}")]
    NotBool(&'static str),
}

/// Compiles a selector.
///
/// ```
/// use vgpu_cel::{Attribute, Device, compile};
/// let program = compile(r#"device.attributes["dra.vgpu"].type == "gpu""#).unwrap();
/// let mut device = Device { driver: "dra.vgpu".into(), ..Device::default() };
/// device.attributes.insert("type".into(), Attribute::String("gpu".into()));
/// assert_eq!(program.matches(&device), Ok(true));
/// assert_eq!(compile("device.name").err().unwrap().to_string(), "at 1:7: undefined field \"name\"");
/// ```
pub fn compile(expression: &str) -> Result<Program, CompileError> {
    let (root, slots) = parse::compile(expression)?;
    Ok(Program {
        inner: Arc::new(Compiled {
            root,
            slots,
            expression: expression.to_owned(),
        }),
    })
}

impl Program {
    /// Returns true if the selector matches the device.
    pub fn matches(&self, device: &Device) -> Result<bool, EvalError> {
        self.matches_with_cost(device).0
    }

    /// Like [`Self::matches`], and returns the cost.
    pub fn matches_with_cost(&self, device: &Device) -> (Result<bool, EvalError>, u64) {
        let mut evaluation = Evaluation::new(device, self.inner.slots);
        let result = match evaluation.eval(&self.inner.root) {
            Ok(Value::Bool(matches)) => Ok(matches),
            Ok(other) => Err(EvalError::NotBool(other.type_name())),
            Err(Fault::Error(why)) => Err(EvalError::Failed(why.to_string())),
            Err(Fault::Stop(Stop::Cost)) => Err(EvalError::CostLimit),
            Err(Fault::Stop(Stop::Work)) => Err(EvalError::WorkLimit),
            Err(Fault::Stop(Stop::Unanswerable)) => Err(EvalError::Failed(
                "Kubernetes cannot evaluate this: a sort of what is no list, or a key that cannot be one".to_owned(),
            )),
        };
        (result, evaluation.cost)
    }

    /// The source text.
    #[must_use]
    pub fn expression(&self) -> &str {
        &self.inner.expression
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Program").field(&self.inner.expression).finish()
    }
}

/// The line and column, from 1, of an offset in a text.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before: String = text.chars().take(offset).collect();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
    (line, column)
}
