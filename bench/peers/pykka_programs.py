"""The programs of ``examples/kernel/`` on pykka: ``python -m bench.peers.pykka_programs bank``.

With pykka's own means where it has them; the rest is written out. The tests count the lines.
"""

# The package is there only where peers are measured, so the checkers do not know its types.
# mypy: ignore-errors
# pyright: basic, reportMissingImports=false
# ruff: noqa: ARG002

from __future__ import annotations

import queue
import sys
import threading
import time
from collections import deque

import pykka

# ---------------------------------------------------------------------- bank


class Account(pykka.ThreadingActor):
    def __init__(self, name, balance):
        super().__init__()
        self.name = name
        self.balance = balance

    def deposit(self, cents):
        self.balance += cents
        return self.balance

    def withdraw(self, cents):
        if cents > self.balance:
            raise ValueError(f"only {self.balance} cents in {self.name}")
        self.balance -= cents
        return self.balance


class Bank(pykka.ThreadingActor):
    def on_start(self):
        self.accounts = {
            name: Account.start(name, balance).proxy()
            for name, balance in (("alice", 100), ("bob", 50))
        }

    def transfer(self, source, target, cents):
        left = self.accounts[source].withdraw(cents).get()
        there = self.accounts[target].deposit(cents).get()
        print(f"{source} has {left}, {target} has {there}")

    def on_stop(self):
        for account in self.accounts.values():
            account.stop()


def bank():
    ref = Bank.start()
    try:
        for transfer in (("alice", "bob", 30), ("bob", "alice", 500)):
            try:
                ref.proxy().transfer(*transfer).get()
            except ValueError as error:
                print("refused:", error)
    finally:
        ref.stop()


# ---------------------------------------------------------------------- ttl_cache


class Cache(pykka.ThreadingActor):
    def __init__(self):
        super().__init__()
        self.entries = {}
        self.timers = {}

    def put(self, key, value, seconds):
        self.entries[key] = value
        if key in self.timers:
            self.timers[key].cancel()
        timer = threading.Timer(seconds, lambda: self.actor_ref.tell(("expired", key, timer)))
        timer.daemon = True
        self.timers[key] = timer
        timer.start()

    def get(self, key):
        return self.entries.get(key)

    def on_receive(self, message):
        _, key, timer = message
        if self.timers.get(key) is timer:  # and not one that was set anew meanwhile
            del self.entries[key], self.timers[key]

    def on_stop(self):
        for timer in self.timers.values():
            timer.cancel()


def ttl_cache():
    ref = Cache.start()
    try:
        cache = ref.proxy()
        cache.put("a", "tea", 0.05)
        cache.put("b", "milk", 60)
        print(cache.get("a").get(), cache.get("b").get())
        cache.put("a", "coffee", 0.1)
        time.sleep(0.07)
        print(cache.get("a").get())
        time.sleep(0.1)
        print(cache.get("a").get(), cache.get("b").get())
    finally:
        ref.stop()


# ---------------------------------------------------------------------- rate_limiter


class Limiter(pykka.ThreadingActor):
    def __init__(self, burst, period):
        super().__init__()
        self.burst, self.left, self.period, self.given = burst, burst, period, 0
        self.waiting = deque()
        self.ended = threading.Event()

    def on_start(self):
        threading.Thread(target=self.tick, daemon=True).start()

    def tick(self):
        while not self.ended.wait(self.period):
            self.actor_ref.tell("refill")

    def permit(self, answer, gone):
        if not self.left:
            self.waiting.append((answer, gone))
            return
        self.left -= 1
        self.given += 1
        answer.set(self.given)

    def on_receive(self, message):
        while self.waiting:
            answer, gone = self.waiting.popleft()
            if not gone.is_set():
                self.given += 1
                answer.set(self.given)
                return
        self.left = min(self.burst, self.left + 1)

    def on_stop(self):
        self.ended.set()


def rate_limiter():
    ref = Limiter.start(2, 0.05)

    def ask(timeout=None):
        answer, gone = pykka.ThreadingFuture(), threading.Event()
        ref.proxy().permit(answer, gone)
        try:
            return answer.get(timeout=timeout)
        finally:
            gone.set()

    def call():
        print("permit", ask())

    threads = [threading.Thread(target=call) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        time.sleep(0.01)
        try:
            ask(timeout=0.01)
        except pykka.Timeout:
            print("gave up")
        for thread in threads:
            thread.join()
    finally:
        ref.stop()


# ---------------------------------------------------------------------- worker_pool


class Collector(pykka.ThreadingActor):
    def __init__(self):
        super().__init__()
        self.results = {}

    def done(self, number, result):
        self.results[number] = result

    def all(self):
        return self.results


class Worker(pykka.ThreadingActor):
    def __init__(self, collector):
        super().__init__()
        self.collector = collector

    def on_receive(self, number):
        time.sleep(0.01)
        self.collector.done(number, 60 // number)


class Workers:
    def __init__(self, size, *args):
        self.refs = [Worker.start(*args) for _ in range(size)]
        self.jobs = []
        self.turn = 0

    def tell(self, number):
        self.turn = (self.turn + 1) % len(self.refs)
        self.jobs.append((number, self.refs[self.turn].ask(number, block=False)))

    def drain(self):
        lost = []
        for number, future in self.jobs:
            try:
                future.get()
            except Exception:
                lost.append(number)
        for ref in self.refs:
            ref.stop()
        return lost


def worker_pool():
    collector = Collector.start()
    try:
        pool = Workers(3, collector.proxy())
        for number in (1, 2, 0, 3, 4, 5):
            pool.tell(number)
        lost = pool.drain()
        print(sorted(collector.proxy().all().get().items()))
        print("lost:", lost)
    finally:
        collector.stop()


# ---------------------------------------------------------------------- back_pressure


class Clean(pykka.ThreadingActor):
    def __init__(self, after, room):
        super().__init__()
        self.after = after
        self.room = room

    def on_receive(self, line):
        self.after.room.acquire()
        self.after.ref.tell(line.strip().lower())
        self.room.release()


class Write(pykka.ThreadingActor):
    def __init__(self, written, room):
        super().__init__()
        self.written = written
        self.room = room

    def on_receive(self, line):
        time.sleep(0.005)
        self.written.append(line)
        self.room.release()


class Bounded:
    def __init__(self, kind, argument, capacity):
        self.room = threading.Semaphore(capacity)
        self.ref = kind.start(argument, self.room)


def back_pressure():
    written = []
    ahead = 0
    write = Bounded(Write, written, 2)
    clean = Bounded(Clean, write, 2)
    try:
        for number in range(20):
            clean.room.acquire()
            clean.ref.tell(f"  Line {number} ")
            ahead = max(ahead, number + 1 - len(written))
    finally:
        clean.ref.stop()  # after all that it was told
        write.ref.stop()
    print(len(written), "lines, the source was at most", ahead, "ahead")
    print(written[0], "...", written[-1])


# ---------------------------------------------------------------------- pubsub


class Subscriber(pykka.ThreadingActor):
    def __init__(self, name, seconds, mail):
        super().__init__()
        self.name, self.seconds, self.mail = name, seconds, mail
        self.seen = []

    def on_receive(self, message):
        try:
            cents = self.mail.get_nowait()
        except queue.Empty:
            return
        time.sleep(self.seconds)
        self.seen.append(cents)

    def on_stop(self):
        print(self.name, self.seen)


class Prices:
    def __init__(self):
        self.members = []

    def join(self, ref, mail):
        self.members.append((ref, mail))

    def publish(self, cents):
        self.members = [(ref, mail) for ref, mail in self.members if ref.is_alive()]
        for ref, mail in self.members:
            if mail.full():
                mail.get_nowait()
            mail.put_nowait(cents)
            ref.tell("look")
        return len(self.members)


def pubsub():
    prices = Prices()
    refs = []
    for name, seconds, capacity in (("quick", 0.0, 1000), ("slow", 0.01, 1)):
        mail = queue.Queue(capacity)
        refs.append(Subscriber.start(name, seconds, mail))
        prices.join(refs[-1], mail)
    for cents in range(10, 15):
        prices.publish(cents)
        time.sleep(0.001)
    for ref in refs:
        ref.stop()
    print(prices.publish(20), "subscribers left")


# ---------------------------------------------------------------------- saga


class Service(pykka.ThreadingActor):
    def __init__(self, name, places):
        super().__init__()
        self.name = name
        self.places = places

    def book(self, trip):
        if not self.places:
            raise LookupError(f"no {self.name} left")
        self.places -= 1
        return f"{self.name} for {trip}"

    def cancel(self, booking):
        self.places += 1
        print("cancelled:", booking)


class Saga(pykka.ThreadingActor):
    def __init__(self, services):
        super().__init__()
        self.services = services

    def travel(self, trip):
        booked = []
        try:
            for service in self.services:
                booked.append((service, service.book(trip).get(timeout=1)))
        except Exception:
            for service, booking in reversed(booked):
                service.cancel(booking).get()
            raise
        return [booking for _, booking in booked]


def saga():
    refs = [
        Service.start(name, places) for name, places in (("flight", 2), ("hotel", 2), ("car", 1))
    ]
    refs.append(Saga.start([ref.proxy() for ref in refs]))
    try:
        travels = refs[-1].proxy()
        print(travels.travel("Rome").get())
        try:
            travels.travel("Oslo").get()
        except LookupError as error:
            print("failed:", error)
    finally:
        for ref in reversed(refs):
            ref.stop()


# ---------------------------------------------------------------------- chat


class Member(pykka.ThreadingActor):
    def __init__(self, name, room):
        super().__init__()
        self.name = name
        self.room = room

    def on_start(self):
        self.room.join(self.name, self.actor_ref)

    def on_receive(self, message):
        who, text = message
        print(f"{self.name} reads {who}: {text}")

    def on_stop(self):
        self.room.left(self.name)

    def on_failure(self, exception_type, exception_value, traceback):
        self.room.left(self.name)


class Room(pykka.ThreadingActor):
    def __init__(self):
        super().__init__()
        self.members = {}

    def join(self, who, ref):
        self.members[who] = ref
        self.pass_on("room", f"{who} is here", who)

    def said(self, who, text):
        self.pass_on(who, text, who)

    def left(self, who):
        del self.members[who]
        self.pass_on("room", f"{who} has left", who)

    def pass_on(self, who, text, but):
        for name, ref in self.members.items():
            if name != but and ref.is_alive():
                ref.tell((who, text))


def chat():
    room = Room.start()
    members = [Member.start(name, room.proxy()) for name in ("ann", "bob")]
    try:
        room.proxy().said("ann", "hello")
        time.sleep(0.01)
        members.pop().stop()
        time.sleep(0.01)
    finally:
        for ref in members:
            ref.stop()
        room.stop()


# ---------------------------------------------------------------------- session

SAVED = {}


class Session(pykka.ThreadingActor):
    def __init__(self, user):
        super().__init__()
        self.user = user
        self.items = SAVED.get(user, [])
        print("loaded", user, self.items)

    def add(self, item):
        self.items.append(item)
        return len(self.items)

    def on_stop(self):
        SAVED[self.user] = self.items
        print("saved", self.user)


class Sessions(pykka.ThreadingActor):
    def __init__(self, idle_after):
        super().__init__()
        self.idle_after = idle_after
        self.ended = threading.Event()
        self.live = {}

    def on_start(self):
        threading.Thread(target=self.tick, daemon=True).start()

    def tick(self):
        while not self.ended.wait(self.idle_after / 4):
            self.actor_ref.tell("sweep")

    def add(self, user, item):
        if user not in self.live:
            self.live[user] = [Session.start(user), 0.0]
        self.live[user][1] = time.monotonic()
        return self.live[user][0].proxy().add(item).get()

    def count(self):
        return len(self.live)

    def on_receive(self, message):
        for user, (ref, used) in [*self.live.items()]:
            if time.monotonic() - used >= self.idle_after:
                del self.live[user]
                ref.stop()

    def on_stop(self):
        self.ended.set()
        for ref, _ in self.live.values():
            ref.stop()


def session():
    ref = Sessions.start(0.02)
    sessions = ref.proxy()
    try:
        adds = [sessions.add("ann", item).get() for item in ("tea", "milk")]
        print(*adds, sessions.count().get())
        while sessions.count().get():
            time.sleep(0.01)
        print(sessions.count().get())
        print(sessions.add("ann", "bread").get())
    finally:
        ref.stop()


# ---------------------------------------------------------------------- aggregate


class MemoryJournal:
    def __init__(self):
        self.lock = threading.Lock()
        self.events = {}

    def read(self, stream):
        with self.lock:
            return list(self.events.get(stream, ()))

    def append(self, stream, after, event):
        with self.lock:
            events = self.events.setdefault(stream, [])
            if len(events) != after:
                raise RuntimeError(f"{stream} was written by another")
            events.append(event)


class Order(pykka.ThreadingActor):
    def __init__(self, journal, key):
        super().__init__()
        self.journal, self.stream = journal, f"order/{key}"
        self.items, self.paid, self.version = [], False, 0

    def on_start(self):
        for event in self.journal.read(self.stream):
            self.apply(event)

    def apply(self, event):
        self.version += 1
        match event:
            case ("added", item):
                self.items.append(item)
            case ("paid",):
                self.paid = True

    def persist(self, event):
        self.journal.append(self.stream, self.version, event)
        self.apply(event)

    def add(self, item):
        if self.paid:
            raise ValueError("it is paid")
        self.persist(("added", item))
        return len(self.items)

    def pay(self):
        self.persist(("paid",))
        return self.items


def aggregate():
    journal = MemoryJournal()
    ref = Order.start(journal, "17")
    print(ref.proxy().add("tea").get(), ref.proxy().add("milk").get())
    ref.stop()
    ref = Order.start(journal, "17")
    try:
        print(ref.proxy().pay().get())
        try:
            ref.proxy().add("bread").get()
        except ValueError as error:
            print("refused:", error)
    finally:
        ref.stop()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
