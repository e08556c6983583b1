import threading

from swarm.compute.backlog import BACKWARDS_IN_A_ROW, Backlog, Urgency

WAIT_S = 10.0


def drain(backlog: Backlog[str], count: int) -> list[str | None]:
    return [backlog.pop() for _ in range(count)]


def test_urgent_first_then_microbatch_then_arrival():
    backlog: Backlog[str] = Backlog()
    for urgency, microbatch, task in [
        (Urgency.FORWARD, 0, "f0"),
        (Urgency.BACKWARD, 7, "b7"),
        (Urgency.BACKWARD, 2, "b2"),
        (Urgency.REDUCE, 0, "z"),
        (Urgency.REDUCE, 0, "a"),
    ]:
        backlog.push(urgency, microbatch, task)
    assert drain(backlog, 5) == ["z", "a", "b2", "b7", "f0"]


def test_what_waits_is_shown_in_its_order_and_stays():
    backlog: Backlog[str] = Backlog()
    for urgency, task in ((Urgency.REDUCE, "z"), (Urgency.FORWARD, "f"), (Urgency.REDUCE, "a"), (Urgency.REDUCE, "m")):
        backlog.push(urgency, 0, task)
    assert backlog.waiting(Urgency.REDUCE) == ["z", "a", "m"]
    assert drain(backlog, 4) == ["z", "a", "m", "f"]


def test_dropped_tasks_are_gone_and_the_order_stays():
    backlog: Backlog[str] = Backlog()
    for m in (5, 1, 4, 2, 3):
        backlog.push(Urgency.FORWARD, m, str(m))
    backlog.drop(lambda task: task in "14")
    assert drain(backlog, 3) == ["2", "3", "5"]


def test_pop_waits_for_work_and_ends_with_close():
    backlog: Backlog[str] = Backlog()
    seen: list[str | None] = []
    thread = threading.Thread(target=lambda: seen.extend(drain(backlog, 2)))
    thread.start()
    backlog.push(Urgency.FORWARD, 0, "work")
    left = backlog.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert [*(task for task in seen if task), *left] == ["work"]
    assert not backlog.push(Urgency.REDUCE, 0, "late")
    assert backlog.pop() is None


def test_weights_wait_for_all_else_but_not_for_a_long_row_of_backwards():
    """A row of them would look like a peer that gets nothing done."""
    backlog: Backlog[str] = Backlog()
    for m in range(2):
        backlog.push(Urgency.WEIGHTS, m, f"w{m}")
    for m in range(BACKWARDS_IN_A_ROW + 1):
        backlog.push(Urgency.BACKWARD, m, f"b{m}")
    backlog.push(Urgency.FORWARD, 0, "f0")
    row = [f"b{m}" for m in range(BACKWARDS_IN_A_ROW)]
    assert drain(backlog, BACKWARDS_IN_A_ROW + 4) == [*row, "w0", f"b{BACKWARDS_IN_A_ROW}", "f0", "w1"]


def test_a_forward_in_between_is_progress_too():
    backlog: Backlog[str] = Backlog()
    backlog.push(Urgency.WEIGHTS, 0, "w0")
    for m in range(2 * BACKWARDS_IN_A_ROW):
        if m == 1:
            backlog.push(Urgency.FORWARD, 0, "f0")
            assert drain(backlog, 1) == ["f0"]
        backlog.push(Urgency.BACKWARD, m, f"b{m}")
        if m <= BACKWARDS_IN_A_ROW:
            assert drain(backlog, 1) == [f"b{m}"]
    assert drain(backlog, 1) == ["w0"]


def test_take_gives_the_first_of_one_urgency_and_waits_for_none():
    backlog: Backlog[str] = Backlog()
    backlog.push(Urgency.FORWARD, 0, "f0")
    assert backlog.take(Urgency.WEIGHTS) is None
    for m in (3, 1, 2):
        backlog.push(Urgency.WEIGHTS, m, f"w{m}")
    assert [backlog.take(Urgency.WEIGHTS) for _ in range(2)] == ["w1", "w2"]
    assert drain(backlog, 2) == ["f0", "w3"]
