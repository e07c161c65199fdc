/* The lock-free rooms src/cpu/scheduler.h, src/cpu/queue.h and src/cpu/host_func.h, checked by spin: a stream with submitted, done and a
   state; a submitter of work and of host functions; two workers that run, poll, let go and sleep; a thread for host functions that spins and
   sleeps; a waiter that enlists and sleeps until its number is done; a destroyer; a monitor that takes streams that are aside.
   Each statement is one atomic operation of the C code, in its order; seq_cst operations are plain steps, since spin
   explores interleavings. The one weaker store, ds__cpu_pass_short, goes through a store buffer of one entry, which
   is what x86 and the C model allow: the load that follows may come before it. A submission is a release store in a
   critical section, so the load of the state may come before it, too, but not before the lock is taken.
   Properties: every operation runs exactly once and in order; nobody sleeps for ever (a state in which everyone who is left
   is blocked is an invalid end state); a destroyed stream is recycled exactly once, and only when drained. */

#ifndef OPS
#define OPS 2
#endif
#ifndef WORKERS
#define WORKERS 2
#endif
/* 1: operations may be host functions */
#ifndef HOSTS
#define HOSTS 0
#endif

/* 1: a worker may set the stream aside */
#ifndef ASIDE
#define ASIDE 0
#endif

/* 1: a worker may not wait for the put lock */
#ifndef BUSY
#define BUSY 0
#endif

mtype = { IDLE, READY, RUNNING, POLLED, AT_HOST, FREED };
mtype state = IDLE;
byte submitted, done, ran, recycled;
byte done_buffer;                /* 0: empty; else a value of done that is not visible yet */
bool waiting, listed, flag, closing, submitted_all, waiter_over, quit;
bool queued;                     /* the stream is in the ready list */
byte mask;                       /* ready_mask */
byte lookers = WORKERS, parked, wake_word;
bool pool_lock, wait_lock, put_lock;
bool aside[WORKERS + 1];         /* a worker owns the stream, which is aside (ds__cpu_set_aside) */
bool host[OPS];                  /* the operation is a host function */
bool host_queued;                /* the stream is in the list for host functions */
byte host_idle, host_spinning, host_word;

#define LOCK(l) atomic { !l -> l = true }
#define UNLOCK(l) l = false

/* ds__futex_wait on wake_word, after the value was read */
inline futex_wait(seen) { (wake_word != seen || quit) }

inline push_ready() {
    LOCK(pool_lock); assert(!queued); queued = true; mask = 1; UNLOCK(pool_lock);
    if
    :: lookers == 0 -> if :: parked > 0 -> wake_word++ :: else fi
    :: else
    fi
}

/* seen_state: the state as the submitter has read it, perhaps before its store of submitted is visible */
inline kick() {
    if
    :: seen_state == IDLE ->
        atomic { if :: state == IDLE -> state = READY; won = true :: else -> won = false fi };
        if :: won -> push_ready() :: else fi
    :: else
    fi
}

/* The caller owns the stream, whose next operation is a host function. */
inline to_host() {
    LOCK(pool_lock);
    assert(state == RUNNING && !host_queued);
    state = AT_HOST; host_queued = true;
    idle = host_idle; spinning = host_spinning;
    UNLOCK(pool_lock);
    if
    :: spinning == 0 && idle > 0 -> host_word++
    :: else
    fi
}

/* ds__cpu_kick_host: the submitter takes an idle or polled stream itself. */
inline kick_host() {
    if
    :: seen_state == IDLE || seen_state == POLLED ->
        atomic { if :: state == seen_state -> state = RUNNING; won = true :: else -> won = false fi };
        if
        :: won ->
            if
            :: submitted == done -> go_idle()
            :: submitted != done && host[done] -> to_host()
            :: submitted != done && !host[done] -> state = READY; push_ready()
            fi
        :: else
        fi
    :: else
    fi
}

/* The caller owns the stream. It becomes idle only under the put lock; the state changes to READY, or the stream is recycled,
   after the lock is released. If the lock is held for long, the stream becomes READY, and a worker comes again. */
inline go_idle() {
    if
    :: BUSY && put_lock -> state = READY; push_ready()
    :: LOCK(put_lock);
    fresh = (submitted != done);
    over = closing;
    if :: !fresh && !over -> state = IDLE :: else fi;
    UNLOCK(put_lock);
    if
    :: fresh -> state = READY; push_ready()
    :: !fresh && over -> recycled++; state = FREED
    :: else
    fi
    fi
}

inline notify() {
    LOCK(wait_lock);
    if
    :: listed && done >= OPS -> listed = false; waiting = false; flag = true
    :: else
    fi;
    UNLOCK(wait_lock)
}

/* Drains the store buffer: what any locked instruction of the worker does first. */
inline flush() { atomic { if :: done_buffer != 0 -> done = done_buffer; done_buffer = 0 :: else fi } }

/* ds__cpu_run_some of a worker, which owns the stream. gone: the stream is at a host function. */
inline run_stream() {
    end = submitted; n = done; unfenced = false; gone = false;
    do
    :: n < end && host[n] ->
        flush();
        if :: unfenced -> if :: waiting -> notify() :: else fi :: else fi;
        unfenced = false; gone = true;
        to_host();
        break
    :: n < end && !host[n] ->
        assert(ran == n); ran++; n++;
        if
        :: true -> /* a short operation */
            flush(); done_buffer = n; unfenced = true;
            if :: waiting -> flush(); notify() :: else fi
        :: true -> /* any other */
            flush();
            if :: unfenced -> if :: waiting -> notify() :: else fi :: else fi;
            unfenced = false;
            done = n;
            if :: waiting -> notify() :: else fi
        fi
    :: else -> break
    od;
    flush();
    if :: unfenced -> if :: waiting -> notify() :: else fi :: else fi
}

/* An exchange of the slot. */
inline take_aside() { atomic { won = aside[i]; aside[i] = false } }

/* The buffer also drains by itself, at any time. */
active proctype buffer() {
    do
    :: atomic { done_buffer != 0 -> done = done_buffer; done_buffer = 0 }
    :: quit -> break
    od
}

/* ds__cpu_return_aside, which the monitor calls for a worker that is stuck, at any time. */
proctype monitor() {
    byte i; bool won, fresh, over;
    do
    :: aside[1] -> i = 1; take_aside(); if :: won -> go_idle() :: else fi
    :: aside[WORKERS] -> i = WORKERS; take_aside(); if :: won -> go_idle() :: else fi
    :: quit -> break
    od
}

proctype worker(byte i) {
    byte end, n, seen, idle, spinning; bool won, mine, unfenced, polled, gone, fresh, over;
    do
    :: quit -> break
    :: else ->
        mine = false;
        if
        :: mask != 0 ->
            LOCK(pool_lock);
            if
            :: queued -> queued = false; mask = 0; assert(state == READY); state = RUNNING; mine = true
            :: else
            fi;
            UNLOCK(pool_lock)
        :: else
        fi;
        if
        :: mine ->
            run_stream();
            if
            :: ASIDE && !gone -> /* aside, while the worker runs another stream; then it may run again */
                flush(); aside[i] = true;
                take_aside();
                if
                :: won -> if :: true -> run_stream() :: true fi
                :: else -> gone = true
                fi
            :: !ASIDE || gone
            fi;
            if
            :: gone
            :: !gone && submitted != done -> state = READY; push_ready()
            :: !gone && submitted == done && !closing -> polled = true; state = POLLED
            :: !gone && submitted == done && closing -> go_idle()
            fi
        :: !mine && polled ->
            if
            :: state == POLLED && submitted != done ->     /* found work */
                polled = false;
                atomic { if :: state == POLLED -> state = RUNNING; won = true :: else -> won = false fi };
                if :: won -> run_stream(); if :: !gone -> go_idle() :: else fi :: else fi
            :: state != POLLED -> polled = false
            :: else ->                                     /* the time to poll is over */
                polled = false;
                atomic { if :: state == POLLED -> state = RUNNING; won = true :: else -> won = false fi };
                if :: won -> go_idle() :: else fi
            fi
        :: !mine && !polled ->                             /* ds__cpu_sleep */
            seen = wake_word;
            parked++;
            lookers--;
            if
            :: mask == 0 && !quit -> futex_wait(seen)
            :: else
            fi;
            lookers++;
            parked--
        fi
    od
}

/* ds__cpu_host_main: the pool's lock is held but while it runs a stream, spins or sleeps. */
proctype host_thread() {
    byte n, seen; bool won, fresh, over;
    LOCK(pool_lock);
    do
    :: host_queued ->
        host_queued = false;
        UNLOCK(pool_lock);
        assert(state == AT_HOST);
        state = RUNNING;
        n = done;
        do
        :: n < submitted && host[n] ->
            assert(ran == n); ran++; n++;
            done = n;
            if :: waiting -> notify() :: else fi
        :: n < submitted && !host[n] -> state = READY; push_ready(); break
        :: n == submitted -> go_idle(); break
        od;
        LOCK(pool_lock)
    :: !host_queued ->
        host_idle++;
        if
        :: true ->
            host_spinning++;
            UNLOCK(pool_lock);
            if :: host_queued :: true fi; /* it sees the stream, or its time is over */
            LOCK(pool_lock);
            host_spinning--
        :: true
        fi;
        do
        :: host_queued -> break
        :: else ->
            seen = host_word;
            if :: quit -> break :: else fi;
            UNLOCK(pool_lock);
            (host_word != seen || quit);
            LOCK(pool_lock)
        od;
        host_idle--;
        if :: !host_queued && quit -> break :: else fi
    od;
    UNLOCK(pool_lock)
}

active proctype submitter() {
    byte idle, spinning; bool won, fresh, over, early; mtype seen_state;
    do
    :: submitted < OPS ->
        LOCK(put_lock);
        if :: HOSTS -> host[submitted] = true :: host[submitted] = false fi;
        if :: early = true; seen_state = state :: early = false fi;
        submitted++;
        UNLOCK(put_lock);
        if :: !early -> seen_state = state :: else fi;
        if
        :: host[submitted - 1] -> kick_host()
        :: else -> kick()
        fi
    :: else -> break
    od;
    submitted_all = true
}

active proctype waiter() {
    submitted_all;
    LOCK(wait_lock);
    waiting = true;
    if
    :: done >= OPS -> waiting = false; UNLOCK(wait_lock)
    :: else -> listed = true; UNLOCK(wait_lock); flag
    fi;
    assert(done == OPS);
    waiter_over = true
}

active proctype destroyer() {
    bool won, late, fresh, over;
    if :: late = true :: late = false fi;
    if :: late -> waiter_over :: else -> submitted_all fi; /* with work pending, or late enough not to mend what somebody else forgot */
    LOCK(put_lock);
    closing = true;
    atomic { if :: state == IDLE -> state = RUNNING; won = true :: else -> won = false fi };
    UNLOCK(put_lock);
    if :: won -> go_idle() :: else fi
}

/* Once everything has happened the workers are told to quit; if it does not happen, this never runs, and spin reports the
   state in which all are stuck. */
active proctype closer() {
    waiter_over && state == FREED;
    assert(ran == OPS && done == OPS && recycled == 1);
    quit = true
}

init { byte i; if :: HOSTS -> run host_thread() :: else fi; if :: ASIDE -> run monitor() :: else fi; for (i : 1 .. WORKERS) { run worker(i) } }
