//! Checks that a hook has the signature that the header declares: as many arguments, each passed in the same way. Types
//! behind pointers are compared if both are plain numbers or pointers.

use crate::headers::{Declaration, Header, split};
use crate::hooks::Hook;

/// How an argument is passed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Pointer(Box<Kind>),
    /// A pointer type with a name, which a hook may take as a number.
    Handle,
    Number(usize),
    /// A structure by value, or an unknown type behind a pointer.
    Other,
}

/// Returns why a hook does not match the declaration; None if it matches or its table does not give its arguments.
pub fn mismatch(hook: &Hook, declaration: &Declaration, header: &Header) -> Option<String> {
    let list = |open, close| hook.takes.strip_prefix(open)?.strip_suffix(close);
    if let Some(places) = list('[', ']') {
        return places.split(',').find_map(|place| no_device(place.trim(), declaration));
    }
    let mut arguments: Vec<String> = split(list('(', ')')?)
        .into_iter()
        .filter(|one| !one.is_empty())
        .collect();
    let expected = &declaration.parameters;
    let has_more = arguments.pop_if(|last| last == "..").is_some();
    if arguments.len() > expected.len() || arguments.len() < expected.len() && !has_more {
        return Some(format!(
            "takes {} arguments, the header {}",
            arguments.len(),
            expected.len()
        ));
    }
    arguments.iter().zip(expected).find_map(|(argument, parameter)| {
        let kind = argument.split_once(':').map(|(_, kind)| kind)?;
        let fits = fits(&of_rust(kind), &of_c(parameter, header));
        (!fits).then(|| format!("takes `{argument}` where the header has `{parameter}`"))
    })
}

fn no_device(place: &str, declaration: &Declaration) -> Option<String> {
    let parameter = place
        .parse()
        .ok()
        .and_then(|place: usize| declaration.parameters.get(place));
    match parameter {
        Some(parameter) if parameter.starts_with("CUdevice ") => None,
        Some(parameter) => Some(format!("takes a device at {place}, where the header has `{parameter}`")),
        None => Some(format!("takes a device at {place}, where the header has no argument")),
    }
}

fn fits(ours: &Kind, theirs: &Kind) -> bool {
    match (ours, theirs) {
        (Kind::Pointer(ours), Kind::Pointer(theirs)) => {
            **ours == Kind::Other || **theirs == Kind::Other || fits(ours, theirs)
        }
        (Kind::Pointer(_) | Kind::Number(8), Kind::Handle) => true,
        _ => ours == theirs,
    }
}

fn of_rust(kind: &str) -> Kind {
    let kind = kind.trim();
    if let Some(inner) = kind.strip_prefix("*const ").or_else(|| kind.strip_prefix("*mut ")) {
        return Kind::Pointer(Box::new(of_rust(inner)));
    }
    match kind {
        "u8" | "c_char" => Kind::Number(1),
        "c_int" | "c_uint" | "i32" | "u32" => Kind::Number(4),
        "usize" | "u64" | "c_ulonglong" | "c_ulong" => Kind::Number(8),
        _ => Kind::Other,
    }
}

fn of_c(parameter: &str, header: &Header) -> Kind {
    if let Some((before, _)) = parameter.rsplit_once('*') {
        if parameter.contains("(*") {
            return Kind::Handle;
        }
        return Kind::Pointer(Box::new(of_c(&format!("{before} _"), header)));
    }
    let (kind, array) = match parameter.split_once('[') {
        Some((kind, _)) => (kind, true),
        None => (parameter, false),
    };
    let words: Vec<&str> = kind
        .split_whitespace()
        .filter(|word| !matches!(*word, "const" | "struct" | "enum" | "union" | "volatile"))
        .collect();
    // The last word is the parameter's name, which a declaration may leave out.
    let named = words.len() > 1 && number(words.last().copied().unwrap_or_default()).is_none();
    let words = words.get(..words.len() - usize::from(named)).unwrap_or_default();
    let one = of_words(words, header, 0);
    if array { Kind::Pointer(Box::new(one)) } else { one }
}

fn number(word: &str) -> Option<usize> {
    Some(match word {
        "char" | "int8_t" | "uint8_t" => 1,
        "short" | "int16_t" | "uint16_t" => 2,
        "int" | "unsigned" | "signed" | "int32_t" | "uint32_t" => 4,
        "long" | "size_t" | "int64_t" | "uint64_t" | "uintptr_t" => 8,
        _ => return None,
    })
}

fn of_words(words: &[&str], header: &Header, depth: usize) -> Kind {
    if let Some(size) = words
        .iter()
        .filter_map(|word| number(word))
        .max_by_key(|size| match size {
            // `unsigned char` has one byte and `unsigned long` eight, so `int` and `unsigned` count only if no other
            // word does.
            4 => 0,
            size => *size,
        })
    {
        return Kind::Number(size);
    }
    let Some(stands_for) = words.first().and_then(|name| header.types.get(*name)) else {
        return Kind::Other;
    };
    if stands_for.contains('*') {
        return Kind::Handle;
    }
    if stands_for.starts_with("enum ") {
        return Kind::Number(4);
    }
    if stands_for.contains('{') || depth > 8 {
        return Kind::Other;
    }
    let words: Vec<&str> = stands_for.split_whitespace().collect();
    of_words(&words, header, depth + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{headers, hooks};

    const HEADER: &str = "
        typedef unsigned long long CUdeviceptr_v2; typedef CUdeviceptr_v2 CUdeviceptr;
        typedef int CUdevice; typedef struct S_st *CUstream; typedef struct L_st { int a; int b; } CUmemLocation;
        typedef enum E_enum { A } CUlimit;
        CUresult cuF(CUdeviceptr *dptr, size_t bytes, CUstream stream, const CUmemLocation *location, CUlimit limit);
        CUresult cuD(char *name, int length, CUdevice dev);
        CUresult cuL(CUmemLocation location, unsigned long long flags, unsigned char bytes[16]);
    ";

    fn wrong(line: &str) -> Option<String> {
        let hook = hooks::hooks(line).remove(0);
        let header = headers::parse(HEADER);
        let declaration = header
            .declarations
            .iter()
            .find(|one| one.name == hook.name)
            .expect("declared");
        mismatch(&hook, declaration, &header)
    }

    #[test]
    fn what_fits() {
        for line in [
            "charged cuF: (a: *mut u64, b: usize, c: usize, d: *const vmm::Location, e: c_uint) => x;",
            "charged cuF: (a: *mut u64, b: usize, c: *mut c_void, d: *const vmm::Location, e: c_int) => x;",
            "virtualised cuD: [2];",
            "virtualised cuD: (name: *mut c_char, length: c_int, device: c_int) => x;",
            "virtualised cuL: (l: vmm::Location, flags: c_ulonglong, bytes: *const u8) => x;",
            "virtualised cuL",
            "charged cuF: (a: *mut u64, b: usize, ..) => x;",
            "charged cuF: (..) => x;",
        ] {
            assert_eq!(wrong(line), None, "{line}");
        }
    }

    #[test]
    fn what_does_not() {
        for line in [
            "charged cuF: (a: *mut u64, b: usize, c: usize, d: *const vmm::Location) => x;",
            "charged cuF: (a: *mut c_uint, b: usize, c: usize, d: *const vmm::Location, e: c_uint) => x;",
            "charged cuF: (a: *mut u64, b: c_uint, c: usize, d: *const vmm::Location, e: c_uint) => x;",
            "charged cuF: (a: *mut u64, b: usize, c: usize, d: vmm::Location, e: c_uint) => x;",
            "charged cuF: (a: u64, b: usize, c: usize, d: *const vmm::Location, e: c_uint) => x;",
            "charged cuF: (a: *mut u64, b: usize, c: usize, d: *const vmm::Location, e: usize) => x;",
            "virtualised cuD: [1];",
            "virtualised cuD: [3];",
            "virtualised cuL: (l: c_ulonglong, flags: c_ulonglong, bytes: *const u8) => x;",
            "charged cuF: (a: usize, ..) => x;",
            "virtualised cuD: (name: *mut c_char, length: c_int, device: c_int, other: c_int, ..) => x;",
        ] {
            assert!(wrong(line).is_some(), "{line}");
        }
    }
}
