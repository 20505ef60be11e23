//! Owns: the lists of the contract's methods and of their dry runs, from the options in the .proto files.
//!
//! Invariant: a method without roles, or with a role twice, ends the build with an error that names it. So does an
//! audited method that has neither a dry run nor a reason to have none: its verb would plan from what it reads, which
//! proves little.
//! Absent: the types of the lists, which are in `src`. `tests/method_options.rs` includes this file too.

use std::error::Error;
use std::fmt::Write as _;

use protox::prost_reflect::{
    DescriptorPool, EnumDescriptor, ExtensionDescriptor, Kind, MethodDescriptor, Value,
};

/// The package of the contract.
pub(crate) const PACKAGE: &str = "rollout.v1";

/// An expression of type `&[Method]`: the methods in the order of their paths.
pub(crate) fn list(pool: &DescriptorPool) -> Result<String, Box<dyn Error>> {
    let options = Options::of(pool)?;
    let mut text = String::from("&[\n");
    for method in &in_order(pool) {
        let roles = options.roles(method)?.join(", ");
        writeln!(
            text,
            "    Method {{ path: {:?}, roles: &[{roles}], audited: {}, \
             client_streaming: {}, server_streaming: {} }},",
            path(method),
            options.audited(method),
            method.is_client_streaming(),
            method.is_server_streaming()
        )?;
    }
    text.push_str("]\n");
    Ok(text)
}

const DRY_RUNS_HEAD: &str = "\
/// Calls a macro with these arguments, and then `PATH => SERVICE.METHOD(REQUEST);` for each method whose requests
/// `DryRuns/DryRun` can check.
#[macro_export]
macro_rules! for_each_dry_run {
    ($callback:ident $($argument:tt)*) => {
        $callback! {
            $($argument)*
";
const DRY_RUNS_TAIL: &str = "        }
    };
}
";

/// A macro that calls another one with the methods that have a dry run.
pub(crate) fn dry_runs(pool: &DescriptorPool) -> Result<String, Box<dyn Error>> {
    let options = Options::of(pool)?;
    let mut text = DRY_RUNS_HEAD.to_owned();
    for method in in_order(pool) {
        if !options.has_dry_run(&method)? {
            continue;
        }
        let service = snake_case(method.parent_service().name());
        let (name, input) = (snake_case(method.name()), method.input());
        writeln!(text, "            {:?} => {service}.{name}({});", path(&method), input.name())?;
    }
    text.push_str(DRY_RUNS_TAIL);
    Ok(text)
}

/// The methods of the contract, in the order of their paths.
fn in_order(pool: &DescriptorPool) -> Vec<MethodDescriptor> {
    let services = pool.services().filter(|service| service.package_name() == PACKAGE);
    let mut methods: Vec<MethodDescriptor> =
        services.flat_map(|service| service.methods().collect::<Vec<_>>()).collect();
    methods.sort_by_key(path);
    methods
}

/// `set_deadline` of `SetDeadline`.
fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

/// `/rollout.v1.Runs/CreateRun`.
fn path(method: &MethodDescriptor) -> String {
    format!("/{}/{}", method.parent_service().full_name(), method.name())
}

/// The options of `rollout/options/v1/options.proto`.
struct Options {
    roles: ExtensionDescriptor,
    names: EnumDescriptor,
    audited: ExtensionDescriptor,
    dry_run: ExtensionDescriptor,
    no_dry_run: ExtensionDescriptor,
}

impl Options {
    fn of(pool: &DescriptorPool) -> Result<Self, String> {
        let find = |name: &str| {
            let name = format!("rollout.options.v1.{name}");
            let found = pool.get_extension_by_name(&name);
            found.ok_or_else(|| format!("no .proto file declares the option {name}"))
        };
        let (roles, audited) = (find("roles")?, find("audited")?);
        let (dry_run, no_dry_run) = (find("dry_run")?, find("no_dry_run")?);
        let Kind::Enum(names) = roles.kind() else {
            return Err("the option rollout.options.v1.roles is not an enum".to_owned());
        };
        Ok(Self { roles, names, audited, dry_run, no_dry_run })
    }

    /// The method's roles as Rust names them: `Role::Client`.
    fn roles(&self, method: &MethodDescriptor) -> Result<Vec<String>, String> {
        let options = method.options();
        let listed = options.get_extension(&self.roles);
        let mut roles = Vec::new();
        for number in listed.as_list().unwrap_or_default().iter().filter_map(Value::as_enum_number)
        {
            let name = self.names.get_value(number).filter(|value| value.number() != 0);
            let role = name.and_then(|value| variant(value.name()));
            let role =
                role.ok_or_else(|| format!("{} has the unknown role {number}", path(method)))?;
            if roles.contains(&role) {
                return Err(format!("{} has {role} twice: remove one line", path(method)));
            }
            roles.push(role);
        }
        if roles.is_empty() {
            return Err(format!(
                "{} has no roles, so no caller could use it: add a line for each role to its .proto file, for example \
                 option (rollout.options.v1.roles) = ROLE_CLIENT;",
                path(method)
            ));
        }
        Ok(roles)
    }

    fn audited(&self, method: &MethodDescriptor) -> bool {
        method.options().get_extension(&self.audited).as_bool().unwrap_or(false)
    }

    /// Whether the leader can check the method's requests in a dry run.
    fn has_dry_run(&self, method: &MethodDescriptor) -> Result<bool, String> {
        let options = method.options();
        let has = options.get_extension(&self.dry_run).as_bool().unwrap_or(false);
        let reason = options.get_extension(&self.no_dry_run);
        let has_reason = reason.as_str().is_some_and(|reason| !reason.is_empty());
        let problem = match (self.audited(method), has, has_reason) {
            (true, true, false) if method.is_client_streaming() || method.is_server_streaming() => {
                "is a stream, which has no dry run: give the reason in no_dry_run"
            }
            (true, true, false) => return Ok(true),
            (true, false, true) | (false, false, false) => return Ok(false),
            (true, true, true) => "has a dry run: remove no_dry_run",
            (true, false, false) => {
                "is audited: add dry_run to its .proto file, or no_dry_run with the reason"
            }
            (false, ..) => "is not audited: remove dry_run and no_dry_run",
        };
        Err(format!("{} {problem}", path(method)))
    }
}

/// `Role::Client` of `ROLE_CLIENT`. One role has another name on the wire, which is released.
fn variant(name: &str) -> Option<String> {
    let name = match name.strip_prefix("ROLE_")? {
        "NEWCOMER" => "UNENROLLED",
        name => name,
    };
    let (first, rest) = name.split_at_checked(1)?;
    Some(format!("Role::{first}{}", rest.to_lowercase()))
}
