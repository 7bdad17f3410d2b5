#!/bin/sh
# Creates the database MYSQL_DATABASE, and MYSQL_USER for it, in the first start.
set -e
: "${MYSQL_ROOT_PASSWORD:?is not set}"
data=/var/lib/mysql
if [ ! -e $data/.ready ]; then
	mkdir -p $data/mysql
	{
		# One statement a line.
		echo "CREATE DATABASE IF NOT EXISTS mysql;"
		echo "USE mysql;"
		echo "SET @auth_root_socket=NULL;"
		cat /usr/share/mysql/mysql_system_tables.sql /usr/share/mysql/mysql_performance_tables.sql /usr/share/mysql/mysql_system_tables_data.sql
		echo "FLUSH PRIVILEGES;"
		echo "ALTER USER root@localhost IDENTIFIED BY '$MYSQL_ROOT_PASSWORD';"
		echo "CREATE DATABASE \`$MYSQL_DATABASE\`;"
		echo "CREATE USER '$MYSQL_USER'@'%' IDENTIFIED BY '$MYSQL_PASSWORD';"
		echo "GRANT ALL ON \`$MYSQL_DATABASE\`.* TO '$MYSQL_USER'@'%';"
	} | mariadbd --no-defaults --bootstrap --user=root --datadir=$data --innodb-flush-method=fsync
	touch $data/.ready
fi
exec "$@" --no-defaults --user=root --datadir=$data --socket=/tmp/mysql.sock --pid-file=/tmp/mysql.pid --skip-name-resolve
