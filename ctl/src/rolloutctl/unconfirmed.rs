//! What members know while there is no leader.
//!
//! Invariant: the output names the member and the index of the state, and says that no leader confirmed it. The command
//! ends with status 3, so programs do not take it for a confirmed answer. Absent: plans and changes, which
//! never use such a state.

use rollout_proto::{Channel, Client, ClientError, HasHeader, MemberRef};
use serde::Serialize;
use tonic::{Request, Response, Status};

use super::Failure;
use super::read::read;

/// The member and the index of an answer that no leader confirmed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Unconfirmed {
    /// The member that answered: of those that answer, the one that has applied most.
    pub(super) member: String,
    /// The index of its state; the state may be newer.
    #[serde(serialize_with = "crate::output::u64_string")]
    pub(super) index: u64,
}

impl Unconfirmed {
    /// The last line of a table.
    pub(super) fn line(&self) -> String {
        format!(
            "not confirmed: as {} knew it at index {}; there is no leader\n",
            self.member, self.index
        )
    }

    /// The end of a command that printed it.
    pub(super) fn failure(&self) -> anyhow::Error {
        let Self { member, index } = self;
        let text = format!(
            "there is no leader: this is the state of {member} at index {index}, not confirmed"
        );
        Failure::unavailable(text).into()
    }
}

/// An answer, and its source if no leader gave it.
pub(super) struct SourcedAnswer<T> {
    pub(super) answer: T,
    pub(super) unconfirmed: Option<Unconfirmed>,
}

/// The last line of a table, if no leader confirmed its content.
pub(super) fn line(unconfirmed: Option<&Unconfirmed>) -> String {
    unconfirmed.map_or_else(String::new, Unconfirmed::line)
}

/// The end of a command that has printed an answer.
///
/// # Errors
/// Exit status 3 if no leader confirmed it.
pub(super) fn end(unconfirmed: Option<&Unconfirmed>) -> anyhow::Result<()> {
    unconfirmed.map_or(Ok(()), |source| Err(source.failure()))
}

/// Asks the leader, or every member if there is no leader.
///
/// # Errors
/// As [`or_any`].
pub(super) async fn read_from_any<R, T, F, Fut>(
    client: &Client,
    what: &'static str,
    request: &R,
    call: F,
) -> Result<SourcedAnswer<T>, ClientError>
where
    R: Clone,
    T: HasHeader,
    F: Fn(Channel, Request<R>) -> Fut,
    Fut: Future<Output = Result<Response<T>, Status>>,
{
    let led = read(client, what, request, |channel, request| call(channel, Request::new(request)));
    or_any(client, led.await, |channel| call(channel, rollout_proto::unconfirmed(request.clone())))
        .await
}

/// Asks for the rest of an answer: the leader, or the member that gave the first part.
///
/// # Errors
/// The leader's refusal, or that the member does not answer any more. No other member is asked in its place.
pub(super) async fn read_from<R, T, F, Fut>(
    client: &Client,
    what: &'static str,
    request: &R,
    from: Option<&Unconfirmed>,
    call: F,
) -> anyhow::Result<T>
where
    R: Clone,
    T: HasHeader,
    F: Fn(Channel, Request<R>) -> Fut,
    Fut: Future<Output = Result<Response<T>, Status>>,
{
    let Some(source) = from else {
        let led =
            read(client, what, request, |channel, request| call(channel, Request::new(request)));
        return Ok(led.await?);
    };
    let all =
        client.each_member(|_, channel| call(channel, rollout_proto::unconfirmed(request.clone())));
    let all = all.await;
    let of_it = all.into_iter().find(|(member, _)| named(member) == source.member);
    match of_it {
        Some((_, Ok(answer))) => Ok(answer),
        // A refusal is final; that the member is gone needs a separate message.
        Some((_, Err(refusal))) if refusal.exit_code() != 3 => Err(refusal.into()),
        _ => {
            let gone = format!("{} did not send the rest of the answer", source.member);
            Err(Failure::unavailable(gone).into())
        }
    }
}

fn named(member: &MemberRef) -> &str {
    if member.name.is_empty() { &member.addr } else { &member.name }
}

/// The leader's answer or, without one, that of the member that has applied most.
///
/// # Errors
/// The leader's own refusal; without a leader, that no member answers.
pub(super) async fn or_any<T, F, Fut>(
    client: &Client,
    led: Result<T, ClientError>,
    ask: F,
) -> Result<SourcedAnswer<T>, ClientError>
where
    T: HasHeader,
    F: Fn(Channel) -> Fut,
    Fut: Future<Output = Result<Response<T>, Status>>,
{
    let error = match led {
        Ok(answer) => return Ok(SourcedAnswer { answer, unconfirmed: None }),
        Err(error) if error.exit_code() == 3 => error,
        Err(error) => return Err(error),
    };
    let answers = client.each_member(|_, channel| ask(channel)).await;
    newest(answers).ok_or(error)
}

/// The answer of the member that has applied most.
fn newest<T: HasHeader>(
    answers: Vec<(MemberRef, Result<T, ClientError>)>,
) -> Option<SourcedAnswer<T>> {
    let index = |answer: &T| answer.header().map_or(0, |header| header.applied_index);
    let good = answers.into_iter().filter_map(|(member, answer)| Some((member, answer.ok()?)));
    let (member, answer) = good.max_by_key(|(_, answer)| index(answer))?;
    let index = index(&answer);
    let member = named(&member).to_owned();
    Some(SourcedAnswer { answer, unconfirmed: Some(Unconfirmed { member, index }) })
}

#[cfg(test)]
mod tests {
    use rollout_proto::v1;

    use super::*;

    #[test]
    fn the_newest_answer_of_the_members_is_shown_with_its_index_and_its_member() {
        let member = |name: &str| MemberRef { name: name.into(), addr: format!("{name}:1") };
        let answer = |applied_index| {
            let header = v1::ClusterHeader { applied_index, ..Default::default() };
            Ok(v1::ListRunsResponse { header: Some(header), ..Default::default() })
        };
        let silent = Err(ClientError::Connect(rollout_proto::ConnectError {
            endpoint: "c3:1".into(),
            phase: rollout_proto::Phase::Tcp,
            cause: "refused".into(),
            permanent: false,
        }));
        let answers =
            vec![(member("c1"), answer(7)), (member("c2"), answer(9)), (member("c3"), silent)];
        let asked = newest(answers).unwrap();
        let told = asked.unconfirmed.unwrap();
        assert_eq!(told, Unconfirmed { member: "c2".into(), index: 9 });
        assert_eq!(told.line(), "not confirmed: as c2 knew it at index 9; there is no leader\n");
        assert_eq!(crate::rolloutctl::exit::code(&told.failure()), 3);
        assert!(newest::<v1::ListRunsResponse>(Vec::new()).is_none());
    }
}
