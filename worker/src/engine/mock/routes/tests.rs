//! The shape of each route's answer.

use super::*;

/// The body of the answer to a request, and the tokens of the completion.
fn ask(url: &str, body: Value) -> Result<(Value, (u64, u64)), EngineFailure> {
    let Value::Object(body) = body else { panic!("no object") };
    let prompt = prompt_of(url, &body)?;
    let plain = Completion { prompt_tokens: words(&prompt), ..Completion::default() };
    let done = called(plain, "m", url, &body, &prompt)?;
    let extra: Value = serde_json::from_str(&done.extra).unwrap();
    assert_eq!(extra["response"]["status_code"], 200);
    let body = extra["response"]["body"].clone();
    assert_eq!(body["model"], "m");
    assert!(body["id"].as_str().is_some_and(|id| id.starts_with("mock-")));
    Ok((body, (done.prompt_tokens, done.completion_tokens)))
}

fn user(content: Value) -> Value {
    let first = json!({"role": "user", "content": "first"});
    json!([first, {"role": "assistant", "content": "b"}, {"role": "user", "content": content}])
}

#[test]
fn a_chat_gets_a_message_with_the_users_last_text() {
    let parts = json!([{"type": "text", "text": "c "}, {"type": "text", "text": "d"}]);
    for content in [json!("c d"), parts] {
        let (body, tokens) =
            ask("/v1/chat/completions", json!({"messages": user(content)})).unwrap();
        assert_eq!(body["object"], "chat.completion");
        let message = json!({"role": "assistant", "content": "MOCK:c d"});
        let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
        assert_eq!(body["choices"], json!([choice]));
        let usage = json!({"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4});
        assert_eq!((&body["usage"], tokens), (&usage, (2, 2)));
    }
}

#[test]
fn each_prompt_of_a_completion_gets_its_choice() {
    let (body, tokens) = ask("/v1/completions", json!({"prompt": ["a b", "c"]})).unwrap();
    assert_eq!(body["object"], "text_completion");
    let choice = |index, text| json!({"index": index, "text": text, "finish_reason": "stop"});
    assert_eq!(body["choices"], json!([choice(0, "MOCK:a b"), choice(1, "MOCK:c")]));
    assert_eq!(tokens, (3, 3));
    let (body, _) = ask("/v1/completions", json!({"prompt": "a"})).unwrap();
    assert_eq!(body["choices"], json!([choice(0, "MOCK:a")]));
}

#[test]
fn a_response_has_one_message_and_its_own_names_of_tokens() {
    let parts = json!([{"type": "input_text", "text": "c d"}]);
    for input in [json!("c d"), user(parts)] {
        let (body, tokens) = ask("/v1/responses", json!({"input": input})).unwrap();
        assert_eq!((&body["object"], &body["status"]), (&json!("response"), &json!("completed")));
        let message = &body["output"][0];
        assert_eq!((&message["type"], &message["role"]), (&json!("message"), &json!("assistant")));
        let text = json!({"type": "output_text", "text": "MOCK:c d", "annotations": []});
        assert_eq!(message["content"], json!([text]));
        let usage = &body["usage"];
        assert_eq!((&usage["input_tokens"], &usage["output_tokens"]), (&json!(2), &json!(2)));
        assert_eq!((&usage["total_tokens"], tokens), (&json!(4), (2, 2)));
    }
}

#[test]
fn each_text_gets_its_vector() {
    for (url, object, name) in
        [("/v1/embeddings", "embedding", "embedding"), ("/pooling", "pooling", "data")]
    {
        let (body, tokens) = ask(url, json!({"input": ["a", "b c"]})).unwrap();
        assert_eq!((&body["object"], tokens), (&json!("list"), (3, 0)));
        for (index, text) in ["a", "b c"].into_iter().enumerate() {
            let entry = json!({"index": index, "object": object, name: vector(text)});
            assert_eq!(body["data"][index], entry, "{url}");
        }
        let usage = json!({"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3});
        assert_eq!(body["usage"], usage);
        let (body, _) = ask(url, json!({"messages": user(json!("a"))})).unwrap();
        assert_eq!(body["data"][0][name], json!(vector("a")));
    }
}

#[test]
fn a_query_is_scored_with_each_document_and_several_with_one_each() {
    for url in ["/v1/score", "/score"] {
        for (one, other) in SIDES {
            let (body, tokens) = ask(url, json!({one: "q", other: ["a", "b"]})).unwrap();
            let entry =
                |index, of| json!({"index": index, "object": "score", "score": score("q", of)});
            assert_eq!(body["data"], json!([entry(0, "a"), entry(1, "b")]));
            assert_eq!((&body["object"], tokens), (&json!("list"), (3, 0)));
        }
        let (body, _) = ask(url, json!({"queries": ["p", "q"], "documents": ["a", "b"]})).unwrap();
        assert_eq!(body["data"][1]["score"], json!(score("q", "b")));
        let uneven = json!({"queries": ["p", "q"], "documents": ["a", "b", "c"]});
        assert_eq!(ask(url, uneven).unwrap_err().code, "ROW_SHAPE");
    }
}

#[test]
fn documents_are_ranked_by_their_scores() {
    for url in ["/v1/rerank", "/rerank"] {
        let documents = ["a", "b", "c", "d"];
        let (body, tokens) = ask(url, json!({"query": "q", "documents": documents})).unwrap();
        assert_eq!(
            (&body["usage"], tokens),
            (&json!({"prompt_tokens": 5, "total_tokens": 5}), (5, 0))
        );
        let results = body["results"].as_array().unwrap();
        assert_eq!(results.len(), documents.len());
        let of = |result: &Value| result["relevance_score"].as_f64().unwrap();
        assert!(results.is_sorted_by(|one, other| of(one) >= of(other)));
        for result in results {
            let document = documents[result["index"].as_u64().unwrap() as usize];
            assert_eq!(result["document"], json!({"text": document}));
            assert_eq!(of(result), score("q", document));
        }
        let two = json!({"query": "q", "documents": documents, "top_n": 2});
        assert_eq!(ask(url, two).unwrap().0["results"], json!(results[..2]));
    }
}

#[test]
fn every_served_route_answers_and_no_other_does() {
    let all = json!({
        "messages": user(json!("x")), "prompt": "x", "input": "x", "text_1": "x", "text_2": "x",
        "query": "x", "documents": "x",
    });
    for url in SERVED {
        assert!(ask(url, all.clone()).is_ok(), "{url}");
        assert_eq!(ask(url, json!({})).unwrap_err().code, "ROW_SHAPE", "{url}");
    }
    for url in ["/v1/images/generations", "/v1/chat/completions/", "/v1/pooling", ""] {
        assert_eq!(ask(url, all.clone()).unwrap_err().code, "UNKNOWN_URL", "{url}");
    }
}

#[test]
fn lists_of_texts_are_bounded_and_have_texts_alone() {
    let full = vec!["x"; TEXTS_MAX];
    assert!(ask("/v1/embeddings", json!({ "input": full })).is_ok());
    let over = vec!["x"; TEXTS_MAX + 1];
    let failure = ask("/v1/embeddings", json!({ "input": over })).unwrap_err();
    assert!(failure.message.contains("over 2048 texts"), "{}", failure.message);
    for input in [json!([]), json!([1, 2]), json!(7), json!(null)] {
        let failure = ask("/v1/embeddings", json!({ "input": input })).unwrap_err();
        assert_eq!(failure.code, "ROW_SHAPE");
    }
}
