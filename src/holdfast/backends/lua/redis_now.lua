-- Tells the time that judges when streams, leases and claims end, in microseconds.
return int(now_us())
