//! Asks every member for its state, or one address.
//!
//! Invariant: no member is asked on behalf of another. Absent: combining the answers (`merge`).

use std::time::{Duration, SystemTime};

use rollout_proto::{
    Channel, ChannelOptions, Client, ClientError, ClientTls, Endpoint, MemberRef, Stamp, channel,
    services, v1,
};

use super::Survey;
use super::merge::merge;
use crate::connect::ConnectSettings;
use crate::rolloutctl::distrust::NoAnswer;

/// Asks every member.
pub async fn survey(client: &Client) -> Survey {
    merge(ask_each(client).await, &client.config().security, SystemTime::now())
}

/// Every member's answer, or why it gave none.
pub(in crate::rolloutctl) async fn ask_each(client: &Client) -> Vec<MemberAnswer> {
    client
        .each_member(|_, channel| async move {
            services::cluster(channel).status(v1::StatusRequest { with_stuck_runs: true }).await
        })
        .await
}

pub(in crate::rolloutctl) type MemberAnswer = (MemberRef, Result<v1::StatusResponse, ClientError>);

/// The time limit for one address.
const ONE_TIMEOUT: Duration = Duration::from_secs(3);

/// Asks one address, which need not belong to any cluster yet.
///
/// # Errors
/// Why it gave no answer, with the phase of the connection that failed.
pub(in crate::rolloutctl) async fn ask_one(
    settings: &ConnectSettings,
    endpoint: &Endpoint,
) -> Result<v1::StatusResponse, NoAnswer> {
    let tls = ClientTls::load(&settings.security).map_err(NoAnswer::silent)?;
    let channel = channel(endpoint, &tls, &settings.dial_map, &ChannelOptions::default());
    let channel = Channel::new(channel.map_err(NoAnswer::silent)?, Stamp::default());
    let mut client = services::cluster(channel);
    match tokio::time::timeout(
        ONE_TIMEOUT,
        client.status(v1::StatusRequest { with_stuck_runs: true }),
    )
    .await
    {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => {
            Err(NoAnswer::of(&ClientError::of_member(&status, endpoint), &settings.security))
        }
        Err(_) => Err(NoAnswer::silent(format!("no answer within {} s", ONE_TIMEOUT.as_secs()))),
    }
}
