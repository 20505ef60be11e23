//! Production sources stay small enough to be read at once.
//!
//! *Invariant:* a file has at most [`FILE_LINES_MAX`] lines: all count, also those of comments and of tests in it. A
//! function has at most [`FUNCTION_LINES_MAX`] lines, from the one with `fn` to the one with the brace that closes its
//! body; both count, and so do blank lines and comments between them, but not the attributes and comments above.
//! Production are the files that the libraries and programs of the workspace are built from, except those below a folder
//! `tests` or `benches`, and except modules and functions under `#[cfg(test)]`.
//! Absent: build scripts, and functions whose names a macro decides.

use super::code::{Token, tokens};
use super::module_cycles::roots;
use super::modules::modules;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;

/// Folders of which nothing is production.
const TESTING: [&str; 2] = ["benches", "tests"];

/// The production files, by their paths in the workspace.
fn production() -> BTreeSet<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it has a parent");
    let modules = roots().into_iter().flat_map(|(root, _)| modules(&root).into_values());
    let files = modules.map(|module| match module.file.strip_prefix(workspace) {
        Ok(file) => file.to_owned(),
        Err(_) => panic!("{} is not in {}", module.file.display(), workspace.display()),
    });
    let of_tests = |file: &PathBuf| TESTING.iter().any(|name| file.iter().any(|at| at == *name));
    files.filter(|file| !of_tests(file)).collect()
}

struct Function {
    name: String,
    /// That of `fn`.
    line: usize,
    lines: usize,
}

/// The functions with bodies.
fn functions(tokens: &[Token]) -> Vec<Function> {
    let mut functions = Vec::new();
    for (at, token) in tokens.iter().enumerate().filter(|(_, token)| token.is("fn")) {
        let name = tokens.get(at + 1).filter(|name| name.is_word());
        if let (Some(name), Some(end)) = (name, end_of_body(&tokens[at..])) {
            let (line, lines) = (token.line, end + 1 - token.line);
            functions.push(Function { name: name.text.clone(), line, lines });
        }
    }
    functions
}

/// The line of the brace that closes the body of the function here.
fn end_of_body(tokens: &[Token]) -> Option<usize> {
    let mut depth = 0usize;
    for token in tokens {
        match token.text.as_str() {
            ";" if depth == 0 => return None,
            "(" | "[" | "{" => depth += 1,
            ")" | "]" => depth = depth.checked_sub(1)?,
            "}" => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(token.line);
                }
            }
            _ => {}
        }
    }
    None
}

/// What is too large in a file.
fn too_large(file: &Path, source: &str) -> Vec<String> {
    let (file, lines) = (file.display(), source.lines().count());
    let mut found = Vec::new();
    if lines > FILE_LINES_MAX {
        let line = FILE_LINES_MAX + 1;
        found.push(format!("{file}:{line}: the file has {lines} lines, at most {FILE_LINES_MAX}"));
    }
    for Function { name, line, lines } in functions(&tokens(source)) {
        if lines > FUNCTION_LINES_MAX {
            found.push(format!(
                "{file}:{line}: fn {name} has {lines} lines, at most {FUNCTION_LINES_MAX}"
            ));
        }
    }
    found
}

#[test]
fn no_production_file_or_function_is_too_large() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it has a parent");
    let files = production();
    let well_known = Path::new("ledger/src/machine/apply.rs");
    assert!(files.contains(well_known), "{} is not among {}", well_known.display(), files.len());
    let found = files.iter().flat_map(|file| {
        let source = std::fs::read_to_string(workspace.join(file)).expect("a module can be read");
        too_large(file, &source)
    });
    let found: Vec<String> = found.collect();
    assert!(found.is_empty(), "move code into modules of its own:\n{}", found.join("\n"));
}

/// A function of so many lines.
fn function(name: &str, lines: usize) -> String {
    let inner = "    // }\n".repeat(lines - 2);
    format!("/// Not counted.\nfn {name}(_: [u8; 3]) -> Vec<u8> {{\n{inner}}}\n")
}

#[test]
fn a_file_or_function_with_one_line_too_many_is_found_with_its_line() {
    let found = |source: &str| too_large(Path::new("a.rs"), source);
    let most = function("most", FUNCTION_LINES_MAX);
    assert_eq!(found(&most), [""; 0]);
    let more = format!("trait T {{\n    fn none(&self);\n}}\n{}", function("more", 71));
    assert_eq!(found(&more), ["a.rs:5: fn more has 71 lines, at most 70"]);
    assert_eq!(found(&format!("#[cfg(test)]\n{}", function("more", 71))), [""; 0]);
    let nested = format!("impl S {{\n    const fn outer() {{\n{most}    }}\n}}\n");
    assert_eq!(found(&nested), ["a.rs:2: fn outer has 73 lines, at most 70"]);
    assert_eq!(found(&"\n".repeat(500)), [""; 0]);
    let long = "\n".repeat(501);
    assert_eq!(found(&long), ["a.rs:501: the file has 501 lines, at most 500"]);
}
