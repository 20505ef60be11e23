//! Certificates, roles, revocation and the audit log.

mod api_keys;
mod audit;
mod authorization;
mod certificates;
mod dry_runs;
mod enrollment;
mod http_api;
mod revoked_certificates;
