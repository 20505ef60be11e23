//! Owns: the list of the contract's methods, with their options in the .proto files.
//!
//! Invariant: a method without roles, or with a role twice, ends the build with an error that names it.
//! Absent: the types of the list, which are in `src/methods.rs`. `tests/method_options.rs` includes this file too.

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
    let services = pool.services().filter(|service| service.package_name() == PACKAGE);
    let mut methods: Vec<MethodDescriptor> =
        services.flat_map(|service| service.methods().collect::<Vec<_>>()).collect();
    methods.sort_by_key(path);
    let mut text = String::from("&[\n");
    for method in &methods {
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

/// `/rollout.v1.Runs/CreateRun`.
fn path(method: &MethodDescriptor) -> String {
    format!("/{}/{}", method.parent_service().full_name(), method.name())
}

/// The options of `rollout/options/v1/options.proto`.
struct Options {
    roles: ExtensionDescriptor,
    names: EnumDescriptor,
    audited: ExtensionDescriptor,
}

impl Options {
    fn of(pool: &DescriptorPool) -> Result<Self, String> {
        let find = |name: &str| {
            let name = format!("rollout.options.v1.{name}");
            let found = pool.get_extension_by_name(&name);
            found.ok_or_else(|| format!("no .proto file declares the option {name}"))
        };
        let (roles, audited) = (find("roles")?, find("audited")?);
        let Kind::Enum(names) = roles.kind() else {
            return Err("the option rollout.options.v1.roles is not an enum".to_owned());
        };
        Ok(Self { roles, names, audited })
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
}

/// `Role::Client` of `ROLE_CLIENT`.
fn variant(name: &str) -> Option<String> {
    let name = name.strip_prefix("ROLE_")?;
    let (first, rest) = name.split_at_checked(1)?;
    Some(format!("Role::{first}{}", rest.to_lowercase()))
}
