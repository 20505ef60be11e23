//! Owns: `rollout store-gateway`.
//!
//! Invariant: it prints the line on stdout only after the port is open and the cluster has answered.
//! Absent: the protocol; crate `rollout-gateway` has it.

use std::sync::Arc;

use rollout_gateway::{GatewayError, GatewayOptions};

use super::cli::StoreGatewayArgs;
use crate::connect::{ConnectArgs, OnWait};
use crate::stdio::{to_stderr, to_stdout};

pub(super) async fn run(connect: &ConnectArgs, args: &StoreGatewayArgs) -> u8 {
    let settings = match connect.settings() {
        Ok(settings) => settings,
        Err(error) => return failed(&error, 2),
    };
    let options = GatewayOptions {
        namespace: settings.namespace.clone(),
        job: args.job.clone(),
        round: args.round,
        ticket: 0,
        listen: args.listen,
        insecure: args.insecure_tcpstore,
    };
    // Clients' waits are long by design and not worth a message.
    let quiet: OnWait = Arc::new(|what: &str| tracing::debug!(what, "waiting"));
    let client = match settings.lasting_client(Some(quiet)) {
        Ok(client) => client,
        Err(error) => return failed(&error, 2),
    };
    let job = args.job.clone();
    let served = rollout_gateway::serve(client, options, |addr| {
        to_stdout(&format!("store of {job} at {addr}\n"));
    });
    let ended = tokio::select! {
        ended = served => ended,
        () = stopped() => Ok(()),
    };
    match ended {
        Ok(()) => 0,
        Err(error) => {
            let code = match &error {
                GatewayError::Exposed(_) => 2,
                GatewayError::Listen { .. } => 1,
                GatewayError::Client(error) => error.exit_code(),
            };
            failed(&error, code)
        }
    }
}

fn failed(error: &dyn std::fmt::Display, code: u8) -> u8 {
    to_stderr(&format!("error: {error}\n"));
    code
}

/// SIGTERM or SIGINT. If they cannot be handled, the process ends by them anyway.
async fn stopped() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}
