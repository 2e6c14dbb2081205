//! Compares NVIDIA's headers with the table: every function that a header declares has a name, a row and, if it is
//! hooked, a hook with the declared signature.

#[path = "kit/fetch.rs"]
mod fetch;
mod kit;

use std::collections::{BTreeMap, BTreeSet};

use fetch::{Release, releases};
use kit::{apis, listed, names};
use vgpu_coverage::coverage::Api;
use vgpu_coverage::headers::{Declaration, Header};
use vgpu_coverage::rows::Fate;
use vgpu_coverage::signature::mismatch;

/// Public names that no header declares: objects of the debugger, and names from the symbol tables of the libraries
/// (generate.py of the software GPU).
const UNDECLARED: [&str; 14] = [
    "cuEGLApiInit",
    "cuMemGetAttribute",
    "cuMemGetAttribute_v2",
    "cudbgApiAttach",
    "cudbgApiDetach",
    "cudbgApiInit",
    "cudbgGetAPI",
    "cudbgGetAPIVersion",
    "cudbgMain",
    "cudbgReportDriverApiError",
    "cudbgReportDriverInternalError",
    "nvmlGetBlacklistDeviceCount",
    "nvmlGetBlacklistDeviceInfoByIndex",
    "nvmlInternalGetExportTable",
];

/// Types of parameters that name a GPU, and so must be translated or filtered.
const NAMES_A_GPU: [&str; 7] = [
    "CUdevice",
    "CUmemLocation",
    "CUmemAllocationProp",
    "CUmemAccessDesc",
    "CUmemPoolProps",
    "CUlogicalEndpointProp",
    "nvmlDevice_t *",
];

/// Functions that pass through anyway; their rows say why.
const NAMES_NO_OTHER_GPU: [&str; 2] = [
    // They name only partitions of a GPU that the program already has.
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
];

fn each(test: &str, look: impl Fn(&[Release])) {
    match releases() {
        Ok(releases) => look(releases),
        Err(why) => vgpu_skip::skip(test, &why.0),
    }
}

/// Every declaration of a function in any of the releases, by API.
fn declared(releases: &[Release]) -> [Vec<(&Header, &Declaration)>; 2] {
    let all = |headers: fn(&Release) -> &[Header]| {
        let headers = releases.iter().flat_map(headers);
        headers
            .flat_map(|header| header.declarations.iter().map(move |declaration| (header, declaration)))
            .collect()
    };
    [all(|release| &release.cuda), all(|release| &release.nvml)]
}

fn check(releases: &[Release], look: impl Fn(&Api, &Header, &Declaration) -> Option<String>) {
    let wrong: BTreeSet<String> = apis()
        .iter()
        .zip(declared(releases))
        .flat_map(|(api, declared)| {
            let look = |(header, declaration): (&Header, &Declaration)| look(api, header, declaration);
            declared.into_iter().filter_map(look).collect::<Vec<_>>()
        })
        .collect();
    assert!(wrong.is_empty(), "{} functions:{}", wrong.len(), listed(&wrong));
}

#[test]
fn every_declared_function_has_a_name_and_a_row() {
    each("every_declared_function_has_a_name_and_a_row", |releases| {
        for release in releases {
            // An empty header would have no differences.
            for (headers, least) in [(&release.cuda, 500), (&release.nvml, 280)] {
                let count: BTreeSet<_> = headers
                    .iter()
                    .flat_map(|one| &one.declarations)
                    .map(|one| &one.name)
                    .collect();
                assert!(
                    count.len() > least,
                    "CUDA {}: only {} functions were read",
                    release.pins,
                    count.len()
                );
            }
        }
        check(releases, |api, _, declaration| {
            let name = &declaration.name;
            if !api.names.contains(name) {
                return Some(format!("{name} is new: add it to vgpu-core/shim/names/"));
            }
            api.row(name)
                .is_none()
                .then(|| format!("{name} has no row: give it one, after reading what it does"))
        });
    });
}

#[test]
fn every_name_is_declared_or_known_to_be_undeclared() {
    each("every_name_is_declared_or_known_to_be_undeclared", |releases| {
        let declared: BTreeSet<&str> = declared(releases)
            .iter()
            .flatten()
            .map(|(_, one)| one.name.as_str())
            .collect();
        let known: BTreeSet<&str> = UNDECLARED.into_iter().collect();
        let all = &(&names("cuda.txt") | &names("nvml.txt")) - &names("cuda-data.txt");
        let stray: Vec<&String> = all
            .iter()
            .filter(|name| declared.contains(name.as_str()) == known.contains(name.as_str()))
            .collect();
        assert!(
            stray.is_empty(),
            "declared by no header, or known as such and declared now:{}",
            listed(stray)
        );
    });
}

#[test]
fn every_hook_takes_what_the_header_says() {
    each("every_hook_takes_what_the_header_says", |releases| {
        check(releases, |api, header, declaration| {
            let hook = api.hooks.iter().find(|hook| hook.name == declaration.name)?;
            mismatch(hook, declaration, header).map(|what| format!("{} {what}", hook.name))
        });
    });
}

/// A GPU has a different number in a share, and a GPU without a share does not exist there.
#[test]
fn whatever_names_a_gpu_is_hooked() {
    each("whatever_names_a_gpu_is_hooked", |releases| {
        check(releases, |api, _, declaration| {
            let name = declaration.name.as_str();
            let (_, row) = api.row(name)?;
            let parameter = declaration.parameters.iter().find(|parameter| {
                let parameter = parameter
                    .trim_start_matches("const ")
                    .replace(" *", "*")
                    .replace('*', " *");
                NAMES_A_GPU.iter().any(|kind| {
                    parameter
                        .strip_prefix(kind)
                        .is_some_and(|rest| rest.starts_with([' ', '*']) || kind.ends_with('*'))
                })
            })?;
            let passes = row.fate == Fate::PassedThrough && !NAMES_NO_OTHER_GPU.contains(&name);
            passes.then(|| format!("{name} passes through, and has `{parameter}`"))
        });
    });
}

/// A hook of a name that no header has would never be called.
#[test]
fn what_is_hooked_is_declared() {
    each("what_is_hooked_is_declared", |releases| {
        let declared: BTreeMap<&str, &Declaration> = declared(releases)
            .iter()
            .flatten()
            .map(|(_, one)| (one.name.as_str(), *one))
            .collect();
        let apis = apis();
        let hooks = apis.iter().flat_map(|api| &api.hooks).map(|hook| hook.name.as_str());
        let stray: Vec<&str> = hooks
            .filter(|name| !declared.contains_key(name) && !UNDECLARED.contains(name))
            .collect();
        assert!(stray.is_empty(), "hooked and declared by no header:{}", listed(stray));
    });
}
