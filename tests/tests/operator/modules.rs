//! The modules of a crate, with the paths in their code.
//!
//! *Invariant:* every file is read that the crate's root declares, directly or through other modules, outside of tests.
//! Absent: what macros produce.

use super::code::{Token, tokens};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The names that lead from the crate's root to a module. Empty for the root.
pub(super) type ModulePath = Vec<String>;

/// A module of a file, or one in braces.
#[derive(Default)]
pub(super) struct Module {
    pub(super) file: PathBuf,
    pub(super) children: BTreeSet<String>,
    /// Whether a child has a file of its own.
    pub(super) is_folder: bool,
    /// The names that its `use` statements bring, and the paths that each stands for.
    pub(super) names: BTreeMap<String, Vec<Vec<String>>>,
    /// The paths in its code, and their lines.
    pub(super) paths: Vec<(Vec<String>, usize)>,
}

pub(super) type Modules = BTreeMap<ModulePath, Module>;

/// All modules of the crate with this root file.
pub(super) fn modules(root: &Path) -> Modules {
    let mut modules = Modules::new();
    let folder = root.parent().expect("a root is in a folder").to_owned();
    let mut open = vec![(ModulePath::new(), root.to_owned(), folder)];
    while let Some((path, file, folder)) = open.pop() {
        for declared in read(&path, &file, &mut modules) {
            let (name, above) = declared.split_last().expect("a child has a name");
            let within = above[path.len()..].iter().fold(folder.clone(), |at, part| at.join(part));
            let (file, folder) = (file_of(&within, name), within.join(name));
            open.push((declared, file, folder));
        }
    }
    modules
}

fn file_of(folder: &Path, name: &str) -> PathBuf {
    let flat = folder.join(format!("{name}.rs"));
    if flat.exists() { flat } else { folder.join(name).join("mod.rs") }
}

/// Adds the module of a file and those in braces. Returns the modules that it declares, which have files of their own.
fn read(path: &[String], file: &Path, modules: &mut Modules) -> Vec<ModulePath> {
    let source = std::fs::read_to_string(file);
    let tokens = tokens(&source.unwrap_or_else(|error| panic!("{}: {error}", file.display())));
    let new = || Module { file: file.to_owned(), ..Module::default() };
    modules.insert(path.to_vec(), new());
    let (mut declared, mut braces, mut at) = (Vec::new(), 0usize, 0);
    // The modules around a token, each with the number of braces around it.
    let mut around = vec![(usize::MAX, path.to_vec())];
    while let Some(token) = tokens.get(at) {
        let is = |ahead: usize, text: &str| tokens.get(at + ahead).is_some_and(|t| t.is(text));
        let begins = at == 0 || !tokens[at - 1].is("::");
        let here = around.last().map(|(_, path)| path.clone()).expect("the file's stays");
        let module = modules.get_mut(&here).expect("it was added");
        at += match token.text.as_str() {
            "{" => {
                braces += 1;
                1
            }
            "}" => {
                braces = braces.saturating_sub(1);
                around.pop_if(|(outside, _)| *outside == braces);
                1
            }
            "mod" if is(2, ";") || is(2, "{") => {
                let name = tokens[at + 1].text.clone();
                let child = [here, vec![name.clone()]].concat();
                module.children.insert(name);
                if is(2, ";") {
                    module.is_folder = true;
                    declared.push(child);
                } else {
                    around.push((braces, child.clone()));
                    modules.insert(child, new());
                }
                2
            }
            "use" if begins && !is(1, "<") => {
                let (imports, behind) = imports(&tokens, at + 1, &[]);
                imports.into_iter().for_each(|import| module.add(import));
                behind - at
            }
            _ if token.is_word() && begins && is(1, "::") => {
                let path = words(&tokens[at..]);
                let length = 2 * path.len() - 1;
                module.paths.push((path, token.line));
                length
            }
            _ => 1,
        };
    }
    declared
}

impl Module {
    fn add(&mut self, import: Import) {
        let Import { path, name, line } = import;
        if let Some(name) = name.filter(|name| name != "_") {
            self.names.entry(name).or_default().push(path.clone());
        }
        self.paths.push((path, line));
    }
}

/// The words of the path that begins here.
fn words(tokens: &[Token]) -> Vec<String> {
    let mut words = vec![tokens[0].text.clone()];
    for step in tokens[1..].chunks(2) {
        match step {
            [colons, word] if colons.is("::") && word.is_word() => words.push(word.text.clone()),
            _ => break,
        }
    }
    words
}

/// A path of a `use` statement.
struct Import {
    path: Vec<String>,
    /// The name that it gets here; none for all names of a module.
    name: Option<String>,
    line: usize,
}

/// The paths of the `use` tree that begins here, each after `above`, and the position behind the tree.
fn imports(tokens: &[Token], mut at: usize, above: &[String]) -> (Vec<Import>, usize) {
    let mut path = above.to_vec();
    while let Some(token) = tokens.get(at) {
        let next_is = |text: &str| tokens.get(at + 1).is_some_and(|token| token.is(text));
        match token.text.as_str() {
            "::" => at += 1,
            "{" => return group(tokens, at + 1, &path),
            "*" => return (vec![Import { path, name: None, line: token.line }], at + 1),
            word if token.is_word() => {
                path.push(word.to_owned());
                if !next_is("::") {
                    let renamed = tokens.get(at + 2).filter(|_| next_is("as"));
                    let behind = if renamed.is_some() { at + 3 } else { at + 1 };
                    // `a::{self}` is `a`.
                    if path.len() > 1 {
                        path.pop_if(|last| *last == "self");
                    }
                    let name = renamed.map(|token| token.text.clone());
                    let name = name.or_else(|| path.last().cloned());
                    return (vec![Import { path, name, line: token.line }], behind);
                }
                at += 1;
            }
            _ => return (Vec::new(), at + 1),
        }
    }
    (Vec::new(), at)
}

/// The paths of the trees in braces, and the position behind them.
fn group(tokens: &[Token], mut at: usize, above: &[String]) -> (Vec<Import>, usize) {
    let mut all = Vec::new();
    while let Some(token) = tokens.get(at).filter(|token| !token.is("}")) {
        if token.is(",") {
            at += 1;
            continue;
        }
        let (some, behind) = imports(tokens, at, above);
        all.extend(some);
        at = behind;
    }
    (all, at + 1)
}
