#!/bin/sh
# Prints the number of votes for each option, such as "a 2".
printf 'Content-Type: text/plain\r\n\r\n'
PGPASSWORD=postgres psql -h db -U postgres -At -F ' ' -c 'SELECT vote, count(*) FROM votes GROUP BY vote ORDER BY vote' 2>&1
