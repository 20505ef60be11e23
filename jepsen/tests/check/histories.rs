//! Histories with an obvious verdict, and files that are no histories.

/// A history and its verdict.
pub(crate) struct JudgedHistory {
    pub(crate) why: &'static str,
    pub(crate) model: &'static str,
    pub(crate) history: &'static str,
    pub(crate) verdict: &'static str,
}

const fn judged(
    why: &'static str,
    model: &'static str,
    history: &'static str,
    verdict: &'static str,
) -> JudgedHistory {
    JudgedHistory { why, model, history, verdict }
}

const GOOD: &str = "linearizable";
const BAD: &str = "violation";
const REGISTER: &str = "cas-register";

pub(crate) const JEPSEN_LOG: &[JudgedHistory] = &[
    judged(
        "the register starts as nil; other lines are ignored; blanks do for tabs",
        REGISTER,
        "INFO  jepsen.core - Worker 0 starting
INFO  jepsen.util - 0\t:invoke\t:read\tnil
INFO  jepsen.util - 1\t:invoke\t:write\t3
INFO  jepsen.util - 0\t:ok\t:read\tnil
INFO  jepsen.util - :nemesis\t:info\t:start\tnil
INFO  jepsen.util - 1   :ok    :write  3
INFO  jepsen.util - 0\t:invoke\t:cas\t[3 4]
INFO  jepsen.util - 0\t:ok\t:cas\t[3 4]
INFO  jepsen.util - 0\t:invoke\t:read\tnil
INFO  jepsen.util - 0\t:ok\t:read\t4
WARN  jepsen.util - 0\t:ok\t:read\t9
",
        GOOD,
    ),
    judged(
        "a stale read",
        REGISTER,
        "INFO  jepsen.util - 0\t:invoke\t:write\t1
INFO  jepsen.util - 0\t:ok\t:write\t1
INFO  jepsen.util - 0\t:invoke\t:write\t2
INFO  jepsen.util - 0\t:ok\t:write\t2
INFO  jepsen.util - 1\t:invoke\t:read\tnil
INFO  jepsen.util - 1\t:ok\t:read\t1
",
        BAD,
    ),
    judged(
        "a failed cas is one that answered false: here it should have succeeded",
        REGISTER,
        "INFO  jepsen.util - 0\t:invoke\t:write\t1
INFO  jepsen.util - 0\t:ok\t:write\t1
INFO  jepsen.util - 1\t:invoke\t:cas\t[1 2]
INFO  jepsen.util - 1\t:fail\t:cas\t[1 2]
",
        BAD,
    ),
    judged(
        "a failed cas that did not find its value, a failed read that is dropped",
        REGISTER,
        "INFO  jepsen.util - 0\t:invoke\t:write\t1
INFO  jepsen.util - 0\t:ok\t:write\t1
INFO  jepsen.util - 1\t:invoke\t:cas\t[7 2]
INFO  jepsen.util - 1\t:fail\t:cas\t[7 2]
INFO  jepsen.util - 1\t:invoke\t:read\tnil
INFO  jepsen.util - 1\t:fail\t:read\t:timed-out
",
        GOOD,
    ),
    judged(
        "an unknown write that took effect long after its client gave up",
        REGISTER,
        "INFO  jepsen.util - 0\t:invoke\t:write\t1
INFO  jepsen.util - 0\t:info\t:write\t:timed-out
INFO  jepsen.util - 1\t:invoke\t:write\t2
INFO  jepsen.util - 1\t:ok\t:write\t2
INFO  jepsen.util - 1\t:invoke\t:read\tnil
INFO  jepsen.util - 1\t:ok\t:read\t2
INFO  jepsen.util - 1\t:invoke\t:read\tnil
INFO  jepsen.util - 1\t:ok\t:read\t1
",
        GOOD,
    ),
    judged(
        "an unknown write takes effect once at most",
        REGISTER,
        "INFO  jepsen.util - 0\t:invoke\t:write\t1
INFO  jepsen.util - 0\t:info\t:write\t:timed-out
INFO  jepsen.util - 1\t:invoke\t:read\tnil
INFO  jepsen.util - 1\t:ok\t:read\t1
INFO  jepsen.util - 1\t:invoke\t:write\t2
INFO  jepsen.util - 1\t:ok\t:write\t2
INFO  jepsen.util - 1\t:invoke\t:read\tnil
INFO  jepsen.util - 1\t:ok\t:read\t1
",
        BAD,
    ),
    judged(
        "two unknown operations explain two cas that answered false, if the right one goes first",
        REGISTER,
        "INFO  jepsen.util - 0\t:invoke\t:write\t9
INFO  jepsen.util - 1\t:invoke\t:cas\t[1 8]
INFO  jepsen.util - 2\t:invoke\t:write\t1
INFO  jepsen.util - 2\t:ok\t:write\t1
INFO  jepsen.util - 2\t:invoke\t:cas\t[1 5]
INFO  jepsen.util - 2\t:fail\t:cas\t[1 5]
INFO  jepsen.util - 2\t:invoke\t:write\t2
INFO  jepsen.util - 2\t:ok\t:write\t2
INFO  jepsen.util - 2\t:invoke\t:cas\t[2 5]
INFO  jepsen.util - 2\t:fail\t:cas\t[2 5]
",
        GOOD,
    ),
    judged(
        "two clients swap the same value: one update is lost",
        REGISTER,
        "INFO  jepsen.util - 0\t:invoke\t:write\t1
INFO  jepsen.util - 0\t:ok\t:write\t1
INFO  jepsen.util - 0\t:invoke\t:cas\t[1 2]
INFO  jepsen.util - 1\t:invoke\t:cas\t[1 3]
INFO  jepsen.util - 0\t:ok\t:cas\t[1 2]
INFO  jepsen.util - 1\t:ok\t:cas\t[1 3]
",
        BAD,
    ),
    judged(
        "reads on two sides of a split see two values by turns",
        REGISTER,
        "INFO  jepsen.util - 0\t:invoke\t:write\t1
INFO  jepsen.util - 1\t:invoke\t:write\t2
INFO  jepsen.util - 0\t:ok\t:write\t1
INFO  jepsen.util - 1\t:ok\t:write\t2
INFO  jepsen.util - 0\t:invoke\t:read\tnil
INFO  jepsen.util - 0\t:ok\t:read\t1
INFO  jepsen.util - 1\t:invoke\t:read\tnil
INFO  jepsen.util - 1\t:ok\t:read\t2
INFO  jepsen.util - 0\t:invoke\t:read\tnil
INFO  jepsen.util - 0\t:ok\t:read\t1
",
        BAD,
    ),
];

pub(crate) const EDN: &[JudgedHistory] = &[
    judged(
        "a vector with comments; the pending write may be seen",
        REGISTER,
        "; a comment
[{:process 4, :type :invoke, :f :write, :value 2}
 {:process 4, :type :ok, :f :write, :value 2} ; another
 {:process 1, :type :invoke, :f :write, :value 4}
 {:process :nemesis, :type :info, :f :kill, :value [:n1 #{:n2}]}
 {:process 6, :type :invoke, :f :read, :value nil}
 {:process 6, :type :ok, :f :read, :value 4}]
",
        GOOD,
    ),
    judged(
        "a list: neither value can be read",
        REGISTER,
        "({:type :invoke, :f :write, :value 0, :process 0}
 {:type :ok, :f :write, :value 0, :process 0, :time 99286665244}
 {:type :invoke, :f :read, :value nil, :process 1}
 {:type :invoke, :f :write, :value 4, :process 2}
 {:type :ok, :f :read, :value 3, :process 1}
 {:type :ok, :f :write, :value 4, :process 2})",
        BAD,
    ),
    judged(
        "a failed write did not happen, so it cannot be read",
        REGISTER,
        "[{:type :invoke, :process 1, :f :read, :value nil}
{:type :invoke, :process 101, :f :write, :value 3}
{:type :fail, :process 101, :f :write, :value 3, :error [:temporarily-unavailable nil]}
{:type :ok, :process 1, :f :read, :value 3}]",
        BAD,
    ),
    judged(
        "a failed cas did not happen either, though it could have succeeded",
        REGISTER,
        "#jepsen.history.Op{:process 0, :type :invoke, :f :write, :value 1}
#jepsen.history.Op{:process 0, :type :ok, :f :write, :value 1}
#jepsen.history.Op{:process 0, :type :invoke, :f :cas, :value [1 2]}
#jepsen.history.Op{:process 0, :type :fail, :f :cas, :value [1 2]}
#jepsen.history.Op{:process 0, :type :invoke, :f :read}
#jepsen.history.Op{:process 0, :type :ok, :f :read, :value 1}
",
        GOOD,
    ),
    judged(
        "of nobody but the nemesis",
        REGISTER,
        "[{:process :nemesis, :type :info, :f :isolate, :value nil}]",
        GOOD,
    ),
    judged(
        "each key starts empty and has an order of its own",
        "kv",
        r#"{:process 9, :type :invoke, :f :append, :key "0", :value "x 9 0 y"}
{:process 1, :type :invoke, :f :get, :key "1", :value nil}
{:process 1, :type :ok, :f :get, :key "1", :value ""}
{:process 1, :type :invoke, :f :get, :key "0", :value nil}
{:process 1, :type :ok, :f :get, :key "0", :value "x 9 0 y"}
{:process 9, :type :ok, :f :append, :key "0", :value "x 9 0 y"}
{:process 1, :type :invoke, :f :put, :key "0", :value "z"}
{:process 1, :type :ok, :f :put, :key "0", :value "z"}
{:process 1, :type :invoke, :f :append, :key "0", :value ""}
{:process 1, :type :ok, :f :append, :key "0", :value ""}
{:process 1, :type :invoke, :f :get, :key "0", :value nil}
{:process 1, :type :ok, :f :get, :key "0", :value "z"}
"#,
        GOOD,
    ),
    judged(
        "a key that is a number is not the key of that text",
        "kv",
        r#"{:process 0, :type :invoke, :f :append, :key 0, :value "x"}
{:process 0, :type :ok, :f :append, :key 0, :value "x"}
{:process 0, :type :invoke, :f :get, :key "0", :value nil}
{:process 0, :type :ok, :f :get, :key "0", :value ""}
"#,
        GOOD,
    ),
    judged(
        "an acknowledged append is lost",
        "kv",
        r#"{:process 0, :type :invoke, :f :append, :key "a", :value "x"}
{:process 0, :type :ok, :f :append, :key "a", :value "x"}
{:process 1, :type :invoke, :f :append, :key "a", :value "y"}
{:process 1, :type :ok, :f :append, :key "a", :value "y"}
{:process 0, :type :invoke, :f :get, :key "a", :value nil}
{:process 0, :type :ok, :f :get, :key "a", :value "y"}
"#,
        BAD,
    ),
    judged(
        "an append is applied twice",
        "kv",
        r#"{:process 0, :type :invoke, :f :append, :key "a", :value "x"}
{:process 0, :type :info, :f :append, :key "a", :value "x"}
{:process 1, :type :invoke, :f :get, :key "a", :value nil}
{:process 1, :type :ok, :f :get, :key "a", :value "xx"}
"#,
        BAD,
    ),
    judged(
        "a set and a map have no order, also within others",
        REGISTER,
        "{:process 0, :type :invoke, :f :write, :value [#{1 2} {:a 1, :b 2}]}
{:process 0, :type :ok, :f :write, :value [#{2 1} {:b 2, :a 1}]}
{:process 0, :type :invoke, :f :cas, :value [[#{2 1} {:b 2, :a 1}] #{1 {:a 1, :b 2}}]}
{:process 0, :type :ok, :f :cas, :value [[#{1 2} {:a 1, :b 2}] #{{:b 2, :a 1} 1}]}
{:process 0, :type :invoke, :f :read, :value nil}
{:process 0, :type :ok, :f :read, :value #{{:a 1, :b 2} 1}}
",
        GOOD,
    ),
    judged(
        "a set is no vector",
        REGISTER,
        "{:process 0, :type :invoke, :f :write, :value #{1 2}}
{:process 0, :type :ok, :f :write, :value #{1 2}}
{:process 0, :type :invoke, :f :read, :value nil}
{:process 0, :type :ok, :f :read, :value [1 2]}
",
        BAD,
    ),
    judged(
        "keys without an order are one: what was put under it is there",
        "kv",
        r#"{:process 0, :type :invoke, :f :put, :key #{1 {:a 1, :b 2}}, :value "x"}
{:process 0, :type :ok, :f :put, :key #{{:b 2, :a 1} 1}, :value "x"}
{:process 0, :type :invoke, :f :get, :key #{{:b 2, :a 1} 1}, :value nil}
{:process 0, :type :ok, :f :get, :key #{1 {:a 1, :b 2}}, :value ""}
"#,
        BAD,
    ),
    judged(
        "and a set is not the key that a vector is",
        "kv",
        r#"{:process 0, :type :invoke, :f :put, :key #{1 2}, :value "x"}
{:process 0, :type :ok, :f :put, :key #{1 2}, :value "x"}
{:process 0, :type :invoke, :f :get, :key [1 2], :value nil}
{:process 0, :type :ok, :f :get, :key [1 2], :value ""}
"#,
        GOOD,
    ),
    judged(
        "infinity is a value: what was written of it is not what was read",
        REGISTER,
        "{:process 0, :type :invoke, :f :write, :value [##Inf 1]}
{:process 0, :type :ok, :f :write, :value [##Inf 1]}
{:process 0, :type :invoke, :f :read, :value nil}
{:process 0, :type :ok, :f :read, :value [1]}
",
        BAD,
    ),
    judged(
        "a value may be infinity, and a character that ends others",
        REGISTER,
        r"{:process 0, :type :invoke, :f :write, :value ##Inf}
{:process 0, :type :ok, :f :write, :value ##Inf}
{:process 0, :type :invoke, :f :cas, :value [##Inf \(]}
{:process 0, :type :ok, :f :cas, :value [##Inf \(]}
{:process 0, :type :invoke, :f :read, :value nil}
{:process 0, :type :ok, :f :read, :value \(}
",
        GOOD,
    ),
];

pub(crate) const JSONL: &[JudgedHistory] = &[
    judged(
        "all that a record may hold; a read concurrent with a write may see either value",
        REGISTER,
        r#"{"time_ns":1,"process":0,"type":"invoke","f":"write","key":"r","value":7,"request_id":"5/1"}
{"time_ns":2,"process":1,"type":"invoke","f":"read","key":"r"}
{"time_ns":5,"process":1,"type":"ok","f":"read","key":"r","value":7,"epoch":3,"at":{"index":9,"position":0},"member":"c1"}

{"time_ns":9,"process":0,"type":"info","f":"write","key":"r","error":"timed out"}
"#,
        GOOD,
    ),
    judged(
        "a cas answers true or false",
        REGISTER,
        r#"{"time_ns":1,"process":0,"type":"invoke","f":"cas","value":[null,7]}
{"time_ns":2,"process":0,"type":"ok","f":"cas","value":false}
"#,
        BAD,
    ),
    judged(
        "time decides, not the order of the lines: the read was called before the write's answer",
        REGISTER,
        r#"{"time_ns":1,"process":0,"type":"invoke","f":"write","value":7}
{"time_ns":4,"process":0,"type":"ok","f":"write","value":7}
{"time_ns":3,"process":1,"type":"invoke","f":"read"}
{"time_ns":6,"process":1,"type":"ok","f":"read","value":null}
"#,
        GOOD,
    ),
    judged(
        "equal times order nothing",
        REGISTER,
        r#"{"time_ns":1,"process":0,"type":"invoke","f":"write","value":7}
{"time_ns":4,"process":0,"type":"ok","f":"write","value":7}
{"time_ns":4,"process":1,"type":"invoke","f":"read"}
{"time_ns":6,"process":1,"type":"ok","f":"read","value":null}
"#,
        GOOD,
    ),
    judged(
        "an object's entries have no order, and zero has no sign",
        REGISTER,
        r#"{"time_ns":1,"process":0,"type":"invoke","f":"write","value":[{"a":1,"b":{"c":0.0,"d":2}}]}
{"time_ns":2,"process":0,"type":"ok","f":"write","value":[{"a":1,"b":{"c":0.0,"d":2}}]}
{"time_ns":3,"process":0,"type":"invoke","f":"read"}
{"time_ns":4,"process":0,"type":"ok","f":"read","value":[{"b":{"d":2,"c":-0.0},"a":1}]}
"#,
        GOOD,
    ),
    judged(
        "an object is not the text that looks like it",
        REGISTER,
        r#"{"time_ns":1,"process":0,"type":"invoke","f":"write","value":{"a":1}}
{"time_ns":2,"process":0,"type":"ok","f":"write","value":{"a":1}}
{"time_ns":3,"process":0,"type":"invoke","f":"read"}
{"time_ns":4,"process":0,"type":"ok","f":"read","value":"{\"a\":1}"}
"#,
        BAD,
    ),
];

/// Format, model, content, and the expected error.
pub(crate) const UNREADABLE: &[(&str, &str, &str, &str)] = &[
    ("jepsen-log", REGISTER, "", "no operation in it"),
    ("jepsen-log", REGISTER, "INFO  jepsen.core - done\n", "no operation in it"),
    (
        "jepsen-log",
        REGISTER,
        "INFO  jepsen.util - 0\t:invoke\t:read\tnil\nINFO  jepsen.util - 0\t:ok\t:read\t[1\n",
        "line 2: ']' is missing",
    ),
    (
        "jepsen-log",
        REGISTER,
        "INFO  jepsen.util - 0\t:invoke\t:cas\t3\n",
        "line 1: a cas is given [from to], not 3",
    ),
    (
        "jepsen-log",
        REGISTER,
        "INFO  jepsen.util - 0\t:ok\t:read\t3\n",
        "line 1: process 0 has no call",
    ),
    (
        "jepsen-log",
        REGISTER,
        "INFO  jepsen.util - 0\t:invoke\t:read\tnil\nINFO  jepsen.util - 0\t:invoke\t:read\tnil\n",
        "line 2: process 0 still waits for its call of line 1",
    ),
    (
        "jepsen-log",
        REGISTER,
        "INFO  jepsen.util - 0\t:invoke\t:write\t1\nINFO  jepsen.util - 0\t:ok\t:read\t1\n",
        "line 2: completes another operation than was called at line 1",
    ),
    (
        "jepsen-log",
        REGISTER,
        "INFO  jepsen.util - 0\t:invoke\t:write\t1\nINFO  jepsen.util - 0\t:ok\t:write\t2\n",
        "line 2: a write of 1 that answers 2",
    ),
    (
        "jepsen-log",
        REGISTER,
        "INFO  jepsen.util - 0\t:invoke\t:read\tnil\nINFO  jepsen.util - 0\t:OK\t:read\t4\n",
        "line 2: unknown type :OK",
    ),
    (
        "jepsen-log",
        REGISTER,
        "INFO  jepsen.util - 99999999999999999999\t:invoke\t:read\tnil\n",
        "line 1: process 99999999999999999999 is too large",
    ),
    (
        "edn",
        REGISTER,
        "{:process \"0\", :type :invoke, :f :read}",
        "line 1: a :process is a number or a keyword, not \"0\"",
    ),
    (
        "edn",
        REGISTER,
        "\n{:process 99999999999999999999, :type :invoke, :f :read}",
        "line 2: a :process is a number or a keyword, not 99999999999999999999",
    ),
    ("edn", REGISTER, "", "no operation in it"),
    ("edn", REGISTER, "[{:process 0, :type :invoke, :f :read}\n", "line 2: the history has no end"),
    ("edn", REGISTER, "[\n{:process 0, :type :invoke, :f}]", "line 2: a map with a key"),
    (
        "edn",
        REGISTER,
        "[{:process 0, :type :invoke, :f :read, :type :ok}]",
        "line 1: a map with the key :type twice",
    ),
    ("edn", REGISTER, "{:type :invoke, :f :read}", "line 1: an operation without :process"),
    ("edn", REGISTER, "{:process 0, :type :start, :f :read}", "unknown :type :start"),
    ("edn", REGISTER, "{:process 0, :type :invoke}", "an operation without :f"),
    ("edn", REGISTER, "\n:a", "line 2: an entry of a history is a map"),
    ("edn", REGISTER, "{:process 0, :type :invoke, :f :acquire}", "not \"acquire\""),
    ("edn", "kv", "{:process 0, :type :invoke, :f :get}", "line 1: an operation without a key"),
    (
        "edn",
        "kv",
        "{:process 0, :type :invoke, :f :put, :key 1, :value 3}",
        "given a string, not 3",
    ),
    ("jsonl", REGISTER, "\n{\"time_ns\":1}\n", "line 2: missing field"),
    (
        "jsonl",
        REGISTER,
        "{\"time_ns\":5,\"process\":0,\"type\":\"invoke\",\"f\":\"read\"}
{\"time_ns\":4,\"process\":0,\"type\":\"ok\",\"f\":\"read\"}\n",
        "line 2: is earlier than its call at line 1",
    ),
];
