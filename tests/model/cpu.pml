/* The lock-free rooms src/cpu/scheduler.h and src/cpu/queue.h, checked by spin: a stream with submitted, done and a state; a submitter, two
   workers that run, poll, let go and sleep; a waiter that enlists and sleeps until its number is done; a destroyer.
   Each statement is one atomic operation of the C code, in its order; seq_cst operations are plain steps, since spin
   explores interleavings. The one weaker store, ds__cpu_pass_short, goes through a store buffer of one entry, which
   is what x86 and the C model allow: the load that follows may come before it.
   Properties: every operation runs exactly once and in order; nobody sleeps for ever (a state in which everyone who is left
   is blocked is an invalid end state); a destroyed stream is recycled exactly once, and only when drained. */

#ifndef OPS
#define OPS 2
#endif
#define WORKERS 2

mtype = { IDLE, READY, RUNNING, POLLED, FREED };
mtype state = IDLE;
byte submitted, done, ran, recycled;
byte done_buffer;                /* 0: empty; else a value of done that is not visible yet */
bool waiting, listed, flag, closing, submitted_all, waiter_over, quit;
bool queued;                     /* the stream is in the ready list */
byte mask;                       /* ready_mask */
byte lookers = WORKERS, parked, wake_word;
bool pool_lock, wait_lock, put_lock;

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

inline kick() {
    if
    :: state == IDLE ->
        atomic { if :: state == IDLE -> state = READY; won = true :: else -> won = false fi };
        if :: won -> push_ready() :: else fi
    :: else
    fi
}

/* The caller owns the stream. */
inline go_idle() {
    do
    :: state = IDLE;
       if
       :: submitted != done ->
            atomic { if :: state == IDLE -> state = READY; won = true :: else -> won = false fi };
            if :: won -> push_ready() :: else fi;
            break
       :: else
       fi;
       if :: !closing -> break :: else fi;
       atomic { if :: state == IDLE -> state = RUNNING; won = true :: else -> won = false fi };
       if :: !won -> break :: else fi;
       if
       :: submitted == done -> recycled++; state = FREED; break
       :: else
       fi
    od
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

/* ds__cpu_run_some and what ds__cpu_run makes of the stream; the caller owns it. */
inline run_stream() {
    end = submitted; n = done; unfenced = false;
    do
    :: n < end ->
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

/* The buffer also drains by itself, at any time. */
active proctype buffer() {
    do
    :: atomic { done_buffer != 0 -> done = done_buffer; done_buffer = 0 }
    :: quit -> break
    od
}

proctype worker() {
    byte end, n, seen; bool won, mine, unfenced, polled;
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
            :: !closing -> polled = true; state = POLLED
            :: go_idle()
            fi
        :: !mine && polled ->
            if
            :: state == POLLED && submitted != done ->     /* found work */
                polled = false;
                atomic { if :: state == POLLED -> state = RUNNING; won = true :: else -> won = false fi };
                if :: won -> run_stream(); go_idle() :: else fi
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

active proctype submitter() {
    bool won;
    do
    :: submitted < OPS -> LOCK(put_lock); submitted++; UNLOCK(put_lock); kick()
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
    bool won, late;
    if :: late = true :: late = false fi;
    if :: late -> waiter_over :: else -> submitted_all fi; /* with work pending, or late enough not to mend what somebody else forgot */
    LOCK(put_lock); closing = true; UNLOCK(put_lock);
    atomic { if :: state == IDLE -> state = RUNNING; won = true :: else -> won = false fi };
    if :: won -> go_idle() :: else fi
}

/* Once everything has happened the workers are told to quit; if it does not happen, this never runs, and spin reports the
   state in which all are stuck. */
active proctype closer() {
    waiter_over && state == FREED;
    assert(ran == OPS && done == OPS && recycled == 1);
    quit = true
}

init { byte i; for (i : 1 .. WORKERS) { run worker() } }
