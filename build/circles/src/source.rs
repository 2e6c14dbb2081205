//! Reads the modules of a crate, starting at its root file: what each defines, imports and names.

use anyhow::{Context, bail};
use proc_macro2::{Span, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};

/// A module. The root is the first of its crate and is called `crate`.
#[derive(Debug, Default)]
pub struct Module {
    /// The path without the leading `crate::`.
    pub name: String,
    pub file: PathBuf,
    pub parent: Option<usize>,
    pub children: BTreeMap<String, usize>,
    pub items: BTreeSet<String>,
    /// Returns true if the module defines traits: their methods are used without naming the trait.
    pub has_traits: bool,
    pub imports: Vec<Import>,
    pub paths: Vec<Reference>,
}

/// One name of a `use` line.
#[derive(Debug)]
pub struct Import {
    pub path: Vec<String>,
    /// The name in this module; `None` for a glob.
    pub name: Option<String>,
    pub line: usize,
    pub is_reexport: bool,
}

/// A path in the code, with one or more segments.
#[derive(Debug)]
pub struct Reference {
    pub path: Vec<String>,
    pub line: usize,
}

/// Reads a crate. The root is the first module.
///
/// # Errors
/// A file is missing or is not Rust.
pub fn read(root: &Path) -> anyhow::Result<Vec<Module>> {
    let mut modules = vec![Module {
        name: "crate".into(),
        file: root.into(),
        ..Module::default()
    }];
    let folder = root.parent().unwrap_or(Path::new("."));
    read_file(&mut modules, 0, folder)?;
    Ok(modules)
}

/// `folder` contains the files of the module's children.
fn read_file(modules: &mut Vec<Module>, at: usize, folder: &Path) -> anyhow::Result<()> {
    let file = modules[at].file.clone();
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let parsed = syn::parse_file(&text).with_context(|| file.display().to_string())?;
    if is_test_only(&parsed.attrs) {
        return Ok(());
    }
    let beside = file.parent().unwrap_or(Path::new(".")).to_owned();
    read_items(modules, at, &parsed.items, folder, &beside)
}

/// `beside` is the folder to which `#[path]` is relative.
fn read_items(
    modules: &mut Vec<Module>,
    at: usize,
    items: &[syn::Item],
    folder: &Path,
    beside: &Path,
) -> anyhow::Result<()> {
    for item in items {
        if is_test_only(attributes(item)) {
            continue;
        }
        if let syn::Item::Mod(declared) = item {
            read_child(modules, at, declared, folder, beside)?;
        } else {
            if let syn::Item::Macro(definition) = item
                && let Some(name) = &definition.ident
                && definition
                    .attrs
                    .iter()
                    .any(|attribute| attribute.path().is_ident("macro_export"))
                && at != 0
            {
                // `crate::name!` refers to this macro.
                let path = vec!["crate".into()]
                    .into_iter()
                    .chain(segments(&modules[at].name))
                    .chain([name.to_string()]);
                let path = path.collect();
                let import = Import {
                    path,
                    name: Some(name.to_string()),
                    line: line(name.span()),
                    is_reexport: true,
                };
                modules[0].imports.push(import);
            }
            define(&mut modules[at], item);
            Reader {
                module: &mut modules[at],
            }
            .visit_item(item);
        }
    }
    Ok(())
}

fn read_child(
    modules: &mut Vec<Module>,
    parent: usize,
    declared: &syn::ItemMod,
    folder: &Path,
    beside: &Path,
) -> anyhow::Result<()> {
    let ident = plain(&declared.ident);
    let name = if parent == 0 {
        ident.clone()
    } else {
        format!("{}::{ident}", modules[parent].name)
    };
    let at = modules.len();
    modules.push(Module {
        name,
        file: modules[parent].file.clone(),
        parent: Some(parent),
        ..Module::default()
    });
    modules[parent].children.insert(ident.clone(), at);
    let own = folder.join(&ident);
    if let Some((_, items)) = &declared.content {
        return read_items(modules, at, items, &own, &own);
    }
    let (file, children) = if let Some(path) = path_attribute(&declared.attrs) {
        let file = beside.join(path);
        let children = file.parent().unwrap_or(beside).to_owned();
        (file, children)
    } else if folder.join(format!("{ident}.rs")).exists() {
        (folder.join(format!("{ident}.rs")), own)
    } else if own.join("mod.rs").exists() {
        (own.join("mod.rs"), own)
    } else {
        bail!(
            "{}: no file for `mod {ident};` in {}",
            modules[parent].file.display(),
            folder.display()
        );
    };
    modules[at].file = file;
    read_file(modules, at, &children)
}

fn define(module: &mut Module, item: &syn::Item) {
    let ident = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Macro(item) => match &item.ident {
            Some(ident) => ident,
            None => return,
        },
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => {
            module.has_traits = true;
            &item.ident
        }
        syn::Item::TraitAlias(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        syn::Item::Union(item) => &item.ident,
        syn::Item::ForeignMod(block) => {
            for item in &block.items {
                match item {
                    syn::ForeignItem::Fn(item) => module.items.insert(plain(&item.sig.ident)),
                    syn::ForeignItem::Static(item) => module.items.insert(plain(&item.ident)),
                    _ => false,
                };
            }
            return;
        }
        _ => return,
    };
    module.items.insert(plain(ident));
}

/// Collects imports and paths, including those in functions and macro calls.
struct Reader<'m> {
    module: &'m mut Module,
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_test_only(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test_only(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            let is_reexport = !matches!(item.vis, syn::Visibility::Inherited);
            self.import(&item.tree, &mut Vec::new(), is_reexport);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none()
            && let Some(first) = path.segments.first()
        {
            let line = line(first.ident.span());
            let path = path.segments.iter().map(|segment| plain(&segment.ident)).collect();
            self.module.paths.push(Reference { path, line });
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        visit::visit_macro(self, call);
        self.tokens(call.tokens.clone());
    }

    // `pub(super)` and attributes name modules without needing them.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}

impl Reader<'_> {
    fn import(&mut self, tree: &syn::UseTree, prefix: &mut Vec<String>, is_reexport: bool) {
        let mut add = |last: Option<&syn::Ident>, name: Option<String>, span: Span| {
            let mut path = prefix.clone();
            path.extend(last.map(plain).filter(|last| last != "self" || prefix.is_empty()));
            self.module.imports.push(Import {
                path,
                name,
                line: line(span),
                is_reexport,
            });
        };
        match tree {
            syn::UseTree::Path(tree) => {
                prefix.push(plain(&tree.ident));
                self.import(&tree.tree, prefix, is_reexport);
                prefix.pop();
            }
            syn::UseTree::Name(tree) if tree.ident == "self" => {
                add(Some(&tree.ident), prefix.last().cloned(), tree.ident.span());
            }
            syn::UseTree::Name(tree) => add(Some(&tree.ident), Some(plain(&tree.ident)), tree.ident.span()),
            syn::UseTree::Rename(tree) => add(Some(&tree.ident), Some(plain(&tree.rename)), tree.ident.span()),
            syn::UseTree::Glob(tree) => add(None, None, tree.star_token.spans[0]),
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, prefix, is_reexport);
                }
            }
        }
    }

    /// A macro call's tokens are not parsed Rust: each run of names joined by `::` is treated as a path.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let colons = |at: usize| {
            let colon = |at: usize| matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == ':');
            colon(at) && colon(at + 1)
        };
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(first) if first == "use" => {
                    let end = tokens[at..]
                        .iter()
                        .position(|token| matches!(token, TokenTree::Punct(p) if p.as_char() == ';'));
                    let line: TokenStream = tokens[at..]
                        .iter()
                        .take(end.map_or(0, |end| end + 1))
                        .cloned()
                        .collect();
                    if let Ok(item) = syn::parse2::<syn::ItemUse>(line) {
                        self.visit_item_use(&item);
                        at += end.unwrap_or(0);
                    }
                }
                TokenTree::Ident(first) => {
                    let line = line(first.span());
                    let mut path = vec![plain(first)];
                    while colons(at + 1)
                        && let Some(TokenTree::Ident(next)) = tokens.get(at + 3)
                    {
                        path.push(plain(next));
                        at += 3;
                    }
                    self.module.paths.push(Reference { path, line });
                }
                _ => {}
            }
            at += 1;
        }
    }
}

/// Returns true if the item exists only in test builds.
fn is_test_only(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute.parse_args::<syn::Meta>().is_ok_and(|meta| needs_test(&meta))
    })
}

fn needs_test(meta: &syn::Meta) -> bool {
    let parts = |list: &syn::MetaList| {
        let parts = list.parse_args_with(syn::punctuated::Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated);
        parts
            .map(|parts| parts.into_iter().collect::<Vec<_>>())
            .unwrap_or_default()
    };
    match meta {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) if list.path.is_ident("all") => parts(list).iter().any(needs_test),
        syn::Meta::List(list) if list.path.is_ident("any") => {
            let parts = parts(list);
            !parts.is_empty() && parts.iter().all(needs_test)
        }
        _ => false,
    }
}

fn path_attribute(attributes: &[syn::Attribute]) -> Option<String> {
    attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("path"))
        .find_map(|attribute| match &attribute.meta {
            syn::Meta::NameValue(syn::MetaNameValue {
                value:
                    syn::Expr::Lit(syn::ExprLit {
                        lit: syn::Lit::Str(path),
                        ..
                    }),
                ..
            }) => Some(path.value()),
            _ => None,
        })
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::ExternCrate(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::ForeignMod(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::TraitAlias(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Union(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn segments(name: &str) -> impl Iterator<Item = String> {
    name.split("::").map(str::to_owned)
}

/// The name without `r#`.
fn plain(ident: &syn::Ident) -> String {
    let name = ident.to_string();
    name.strip_prefix("r#").map(str::to_owned).unwrap_or(name)
}

fn line(span: Span) -> usize {
    span.start().line
}
