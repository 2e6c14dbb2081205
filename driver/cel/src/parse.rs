//! Parses text with the crate `cel`, and limits the cost of hostile text.

use cel::IdedExpr;
use cel::common::ast::{EntryExpr, Expr};

use crate::check;
use crate::node::Node;
use crate::{CompileError, LONGEST_EXPRESSION};

/// Maximum nesting of an expression. cel-go limits its own recursion to the same depth.
const DEEPEST: usize = 250;
/// Stack of the parser. It recurses several frames for each level, and once for each link of a chain of selections or
/// operators; a text of the allowed length can have a chain of five thousand. Only touched pages take memory.
const STACK: usize = 256 << 20;

/// Parses and checks on a stack of its own, because the caller's may be small.
pub(crate) fn compile(expression: &str) -> Result<(Node, usize), CompileError> {
    if expression.len() > LONGEST_EXPRESSION {
        return Err(error(format!(
            "the expression has {} bytes; the limit is {LONGEST_EXPRESSION}",
            expression.len()
        )));
    }
    std::thread::scope(|scope| {
        let work = std::thread::Builder::new()
            .name("cel".to_owned())
            .stack_size(STACK)
            .spawn_scoped(scope, || parse(expression));
        match work.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(result)) => result,
            // The parser is a foreign crate and partly generated: it may panic on text that it cannot parse.
            Ok(Err(_)) => Err(error("the expression cannot be parsed".to_owned())),
            Err(why) => Err(error(format!("no thread to parse the expression: {why}"))),
        }
    })
}

fn parse(expression: &str) -> Result<(Node, usize), CompileError> {
    let parser = cel::Env::default()
        .parser()
        .max_recursion_depth(DEEPEST as u16)
        .error_recovery_limit(1)
        .enable_ident_escape_syntax(true);
    let (root, source) = parser.parse_with_source_info(expression).map_err(|errors| {
        let first = errors.errors.first();
        CompileError {
            line: first.map_or(1, |e| e.pos.0.max(1) as usize),
            column: first.map_or(1, |e| e.pos.1.max(1) as usize),
            message: first.map_or_else(|| "cannot be parsed".to_owned(), |e| e.msg.clone()),
        }
    })?;
    if depth(&root) > DEEPEST {
        return Err(error(format!(
            "the expression is nested more than {DEEPEST} levels deep"
        )));
    }
    check::check(&root, &source)
}

fn error(message: String) -> CompileError {
    CompileError {
        line: 1,
        column: 1,
        message,
    }
}

/// The depth of the syntax, computed without recursion.
fn depth(root: &IdedExpr) -> usize {
    let mut deepest = 0;
    let mut open = vec![(root, 1)];
    while let Some((expression, depth)) = open.pop() {
        deepest = deepest.max(depth);
        let mut add = |of| open.push((of, depth + 1));
        match &expression.expr {
            Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).for_each(&mut add),
            Expr::Select(select) => add(&select.operand),
            Expr::List(list) => list.elements.iter().for_each(&mut add),
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        add(&entry.key);
                        add(&entry.value);
                    }
                }
            }
            _ => {}
        }
    }
    deepest
}
