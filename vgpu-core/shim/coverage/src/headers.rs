//! Reads the declarations of a C header after the preprocessor (`cc -E -P`).
//!
//! It understands only as much C as these headers use: declarations and typedefs at the top level.

use std::collections::BTreeMap;

/// One declared function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declaration {
    pub name: String,
    pub parameters: Vec<String>,
}

/// The contents of a header.
#[derive(Debug, Default)]
pub struct Header {
    pub declarations: Vec<Declaration>,
    /// Type names and their meanings.
    pub types: BTreeMap<String, String>,
}

/// Reads preprocessed text.
pub fn parse(text: &str) -> Header {
    let mut header = Header::default();
    for statement in statements(text) {
        if let Some(rest) = statement.strip_prefix("typedef ") {
            if let Some((name, kind)) = typedef(rest) {
                header.types.insert(name, kind);
            }
        } else if let Some(declaration) = declaration(&statement) {
            header.declarations.push(declaration);
        }
    }
    header
}

/// Returns the top-level statements with single spaces, without bodies and attributes.
fn statements(text: &str) -> Vec<String> {
    let (mut found, mut now, mut depth) = (Vec::new(), String::new(), 0_usize);
    for character in text.chars() {
        match character {
            '{' => {
                depth += 1;
                if depth == 1 {
                    now.push_str(if now.ends_with(' ') { "{} " } else { " {} " });
                }
            }
            '}' => {
                depth = depth.saturating_sub(1);
                // The body of a function ends its statement; after the body of a type, its name follows.
                if depth == 0 && now.contains('(') && !now.starts_with("typedef") {
                    now.clear();
                }
            }
            ';' if depth == 0 => found.push(std::mem::take(&mut now)),
            _ if depth > 0 => {}
            _ if character.is_whitespace() => {
                if !now.is_empty() && !now.ends_with(' ') {
                    now.push(' ');
                }
            }
            _ => now.push(character),
        }
    }
    found
        .iter()
        .map(|statement| without_attributes(statement).trim().to_owned())
        .collect()
}

fn without_attributes(statement: &str) -> String {
    let mut rest = statement;
    let mut out = String::new();
    while let Some((before, after)) = rest.split_once("__attribute__") {
        out.push_str(before);
        rest = parenthesised(after.trim_start()).map_or("", |(_, after)| after);
    }
    out + rest
}

/// Splits a text `(inside) after` that begins with a parenthesis.
fn parenthesised(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0_usize;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' if depth == 1 => return Some((text.get(1..at)?, text.get(at + 1..)?)),
            ')' => depth = depth.checked_sub(1)?,
            _ if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

fn declaration(statement: &str) -> Option<Declaration> {
    let at = statement.find('(')?;
    let (before, after) = statement.split_at(at);
    let name = last_word(before)?;
    let capital = ["cu", "nvml"]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix)?.chars().next());
    if !capital.is_some_and(|first| first.is_ascii_uppercase()) || before.trim() == name {
        return None;
    }
    let (inside, _) = parenthesised(after)?;
    let parameters = split(inside)
        .into_iter()
        .filter(|parameter| !matches!(parameter.as_str(), "" | "void"))
        .collect();
    Some(Declaration {
        name: name.to_owned(),
        parameters,
    })
}

/// Returns the parts between commas that are not in brackets.
pub(crate) fn split(list: &str) -> Vec<String> {
    let mut depth = 0_i32;
    let parts = list.split(|character: char| {
        match character {
            '(' | '[' | '<' => depth += 1,
            ')' | ']' | '>' => depth -= 1,
            _ => {}
        }
        character == ',' && depth == 0
    });
    parts.map(|part| part.trim().to_owned()).collect()
}

/// Returns name and meaning of a typedef: a pointer, a structure, an enumeration, or another type.
fn typedef(rest: &str) -> Option<(String, String)> {
    if let Some((before, after)) = rest.split_once('(') {
        // typedef result (*name)(parameters);
        let name = last_word(after.split(')').next()?)?;
        return Some((name.to_owned(), format!("{} (*)", before.trim())));
    }
    let rest = rest.split('[').next()?.trim();
    let name = last_word(rest)?;
    let kind = rest.strip_suffix(name)?.trim();
    Some((name.to_owned(), kind.to_owned()))
}

fn last_word(text: &str) -> Option<&str> {
    text.split(|character: char| !character.is_alphanumeric() && character != '_')
        .rfind(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
        typedef unsigned int CUdeviceptr_v1;
        typedef struct CUctx_st *CUcontext;
        typedef enum cudaError_enum { A = 1, B = 2 } CUresult;
        typedef struct P_st { int a; struct { int b; } c; } P;
        typedef void ( *CUhostFn)(void *userData);
        CUresult cuMemAlloc_v2(CUdeviceptr *dptr,
            size_t bytesize);
        __attribute__((deprecated(\"old\"))) CUresult cuCtxAttach(CUcontext *pctx, unsigned int flags);
        nvmlReturn_t nvmlInit_v2(void);
        const char* nvmlErrorString(nvmlReturn_t result);
        static inline CUresult cuInline(int a) { return cuOther(a); }
        CUresult cuWithCallback(void (*fn)(int, void *), int lines[2]);
        int other(int a);
    ";

    #[test]
    fn functions() {
        let found = parse(TEXT).declarations;
        let expected = [
            ("cuMemAlloc_v2", vec!["CUdeviceptr *dptr", "size_t bytesize"]),
            ("cuCtxAttach", vec!["CUcontext *pctx", "unsigned int flags"]),
            ("nvmlInit_v2", vec![]),
            ("nvmlErrorString", vec!["nvmlReturn_t result"]),
            ("cuWithCallback", vec!["void (*fn)(int, void *)", "int lines[2]"]),
        ];
        let found: Vec<_> = found
            .iter()
            .map(|one| (one.name.as_str(), one.parameters.iter().map(String::as_str).collect()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn types() {
        let types = parse(TEXT).types;
        for (name, expected) in [
            ("CUdeviceptr_v1", "unsigned int"),
            ("CUcontext", "struct CUctx_st *"),
            ("CUresult", "enum cudaError_enum {}"),
            ("P", "struct P_st {}"),
            ("CUhostFn", "void (*)"),
        ] {
            assert_eq!(types.get(name).map(String::as_str), Some(expected));
        }
    }
}
